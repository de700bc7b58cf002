"""Imported first where much is imported: modules are not garbage, and looking for some among them takes long."""

import gc

gc.disable()
