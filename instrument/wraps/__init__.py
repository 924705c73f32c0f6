"""Wrappers by subject: one module each, with `install(patches)`.

Each replaces functions of PyTorch through its `Patches`, and returns nothing: `Patches.restore`
undoes it. None imports another one; `instrument.switch.PARTS` lists them.
"""
