"""A module for each thing that is wrapped, with `install(patches)`.

Each replaces functions of PyTorch through the `Patches` that it is given, and returns nothing:
`Patches.restore` undoes it. None imports another one; `instrument.switch.PARTS` lists them.
"""
