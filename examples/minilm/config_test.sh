#!/bin/bash
# The example's configuration is valid.
set -eu
exec "$1" config convert "$2"
