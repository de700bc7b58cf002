"""One rank of one run. It knows the messages to its parent and the workloads; nobody imports it."""
