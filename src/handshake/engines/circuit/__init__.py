"""Back end to hardware: plans become circuits of Amaranth components, simulated cycle by cycle.

It needs more packages: install the extra 'circuit' from a checkout: pip install -e '.[circuit]'.
"""
