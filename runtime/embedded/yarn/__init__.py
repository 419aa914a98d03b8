"""An embedded YARN: a ResourceManager, NodeManagers, and the command that runs them."""
