#!/usr/bin/env bash
# Writes a tar with a small root file system: a Java runtime made from this host's JDK, its shared
# libraries, bash and busybox. Needs no image registry and no package mirror.
#   docker/jre/make-rootfs.sh OUT.tar
set -euo pipefail
[[ $# -eq 1 ]] || { echo "usage: $0 OUT.tar" >&2; exit 2; }

modules=java.se,jdk.crypto.ec,jdk.management,jdk.management.agent,jdk.naming.dns,jdk.net
modules+=,jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.zipfs
modules+=,jdk.incubator.vector # Spark

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
jlink=$(readlink -f "${JAVA_HOME:+$JAVA_HOME/bin/}jlink" 2>/dev/null || true)
[[ -x $jlink ]] || jlink=$(readlink -f "$(command -v jlink)")

mkdir -p "$root"/{bin,dev,etc,home/appuser,opt,proc,run,sys,tmp,usr/bin,var}
chmod 1777 "$root/tmp"
"$jlink" --add-modules "$modules" --strip-java-debug-attributes --no-header-files --no-man-pages \
  --output "$root/opt/java"
"$root/opt/java/bin/java" -Xshare:dump >/dev/null

# Shared libraries that the dynamic loader finds for every program and library. Libraries that jars
# unpack at run time (compression codecs) also need the C++ runtime, which no program here names.
list_libraries() {
  find "$root/opt/java" -type f \( -name '*.so' -o -perm -u+x \) -print0 |
    xargs -0 -n 1 ldd 2>/dev/null || true
  ldd "$(command -v bash)"
  ldconfig -p | grep -E '^\s(libstdc\+\+\.so\.6|libgcc_s\.so\.1) .*(x86-64|AArch64)' || true
}
list_libraries | grep -oE '/[^ ]+\.so[^ ]*' | sort -u | while read -r library; do
  case $library in "$root"/*) continue ;; esac
  mkdir -p "$root${library%/*}"
  cp --dereference "$library" "$root$library"
done

cp "$(command -v bash)" "$root/bin/bash"
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in $("$root/bin/busybox" --list); do
  [[ -e $root/bin/$applet ]] || ln -s busybox "$root/bin/$applet"
done
ln -s /bin/env "$root/usr/bin/env"
ln -s /opt/java/bin/java "$root/bin/java"

# The user of apache/kafka.
printf '%s\n' 'root:x:0:0:root:/:/bin/bash' 'appuser:x:1000:1000::/home/appuser:/bin/bash' \
  >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'appuser:x:1000:' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
tar --create --directory "$root" --numeric-owner --owner=0 --group=0 --file "$1" .
