"""`python -m aqt_native ...` is the `aqt` command."""

from aqt_native._command import main

main()
