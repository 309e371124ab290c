"""Reports and pages to look at: what lies in a dataset, what is wrong with it, what an encoder makes of it.

Nothing is imported here: the command line answers ``--help`` without loading torch.
"""
