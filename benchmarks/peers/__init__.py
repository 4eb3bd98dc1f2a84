"""The servers measured beside the gateway: one program each, run in an environment of its own where it needs one."""
