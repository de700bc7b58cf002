"""Where it is measured, and what else happens there. Only `calibrate` imports torch, when it measures."""
