#!/usr/bin/env bash
# Copies a Python interpreter of this host with its library, pip and shared libraries into DIR, under
# the paths of the official image python:3. build.sh lays it over local/jre:17.
#   docker/python/make-rootfs.sh DIR PYTHON
set -euo pipefail
[[ $# -eq 2 ]] || { echo "usage: $0 DIR PYTHON" >&2; exit 2; }
root=$1

mapfile -t paths < <("$2" -c '
import os, sys, sysconfig, pip
print(os.path.realpath(sys.executable), sysconfig.get_path("stdlib"), sep="\n")
print(os.path.dirname(os.path.dirname(pip.__file__)))')
python=${paths[0]} library=${paths[1]} packages=${paths[2]}
name=${library##*/}

mkdir -p "$root"/usr/local/{bin,lib/"$name"/site-packages}
cp "$python" "$root/usr/local/bin/$name"
ln -s "$name" "$root/usr/local/bin/python3"
tar --create --directory "$library" --exclude=__pycache__ --exclude='./config-*' \
  --exclude=./{site-packages,dist-packages,test,idlelib} . |
  tar --extract --directory "$root/usr/local/lib/$name"
cp -R "$packages/pip" "$root/usr/local/lib/$name/site-packages/"

# Wheels expect all of glibc: policy manylinux of PEP 600.
glibc='lib(c|dl|m|pthread|resolv|rt|util)\.so\.[0-9]+'
{
  ldconfig -p | grep -E "^\s$glibc .*(x86-64|AArch64)"
  ldd "$python"
  find "$library/lib-dynload" -name '*.so' -print0 | xargs -0 -n 1 ldd
} | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | while read -r shared; do
  # The interpreter's own library moves with it; all others keep their paths.
  case $shared in */libpython*) target=/usr/local/lib/${shared##*/} ;; *) target=$shared ;; esac
  [[ -e $root$target ]] && continue
  mkdir -p "$root${target%/*}"
  cp --dereference "$shared" "$root$target"
done
