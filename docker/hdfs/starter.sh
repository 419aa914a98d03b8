#!/bin/bash
# Turns variables like CORE-SITE.XML_fs.defaultFS into core-site.xml and hdfs-site.xml, formats the
# disk of a new NameNode (ENSURE_NAMENODE_DIR) and becomes the command: `hdfs namenode`, `hdfs
# datanode`. The variables have the same meaning as for apache/hadoop.
set -euo pipefail

escape() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g' <<<"$1"; }

properties() { # properties SITE: the settings of SITE.xml from the environment
  local entry name prefix
  # A shell has no variables of such names, but keeps them in its environment.
  while IFS= read -r -d '' entry; do
    name=${entry%%=*}
    prefix=${name:0:${#1}+5}
    [[ ${prefix,,} == "$1"[._]xml_ ]] || continue
    printf '<property><name>%s</name><value>%s</value></property>\n' \
      "$(escape "${name:${#prefix}}")" "$(escape "${entry#*=}")"
  done </proc/$$/environ
}

for site in core-site hdfs-site; do
  found=$(properties $site)
  [[ -z $found ]] ||
    printf '<configuration>\n%s\n</configuration>\n' "$found" >"$HADOOP_CONF_DIR/$site.xml"
done

# A format writes the first image last.
if [[ -n ${ENSURE_NAMENODE_DIR:-} ]] &&
  ! compgen -G "$ENSURE_NAMENODE_DIR/current/fsimage_*" >/dev/null; then
  hdfs namenode -format -nonInteractive -force
fi
exec "$@"
