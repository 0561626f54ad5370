#!/bin/sh
# Builds Abseil, protobuf and Highway as position independent archives, from the sources of Debian's packages and with
# Debian's patches. Debian's own archives work in programs, but not in shared libraries.
#
#   aqt/jax/pic_archives.sh FOLDER
#   ./bazelw build --linkopt=-LFOLDER/lib //aqt/jax:libaqt_jax.so
#
# Needs cmake, ninja-build and a network. apt checks the signatures of what it downloads.
set -eu

[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1/sources/lists/partial"
folder=$(cd "$1" && pwd)
cd "$folder/sources"

release=$(. /etc/os-release && echo "$VERSION_CODENAME")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb-src [signed-by=$keyring] http://deb.debian.org/debian $release main" > sources.list
apt="apt-get -qq -o Dir::Etc::SourceList=$PWD/sources.list -o Dir::Etc::SourceParts=/dev/null
     -o Dir::State::Lists=$PWD/lists -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache= -o APT::Sandbox::User=root"
$apt update
# The versions of the installed headers.
for package in abseil:libabsl-dev protobuf:libprotobuf-dev highway:libhwy-dev; do
  version=$(dpkg-query -W -f='${source:Version}' "${package#*:}")
  [ -d "${package%:*}" ] || {
    $apt source --download-only "${package%:*}=$version"
    mkdir "${package%:*}"
    tar xf "${package%:*}"_*.orig.tar.* -C "${package%:*}" --strip-components=1
    tar xf "${package%:*}"_*.debian.tar.* -C "${package%:*}"
    grep -v '^#' "${package%:*}/debian/patches/series" | while read -r patch; do
      patch -s -p1 -d "${package%:*}" < "${package%:*}/debian/patches/$patch"
    done
  }
done

build() {
  package=$1
  shift
  cmake -S "$package" -B "build-$package" -GNinja -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_CXX_STANDARD=17 -DCMAKE_CXX_FLAGS="-fvisibility=hidden -g0" -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF \
    -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_INSTALL_LIBDIR=lib "$@" > /dev/null
  cmake --build "build-$package" --target install > "build-$package.log"
}
build abseil
build protobuf -Dprotobuf_BUILD_TESTS=OFF -Dprotobuf_BUILD_PROTOC_BINARIES=OFF
build highway -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_CONTRIB=OFF
