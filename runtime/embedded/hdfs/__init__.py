"""An embedded HDFS: NameNode and DataNode."""
