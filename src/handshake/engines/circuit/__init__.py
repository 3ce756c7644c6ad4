"""Back end to hardware: plans become circuits of Amaranth components, simulated cycle by cycle.

Install `handshake[circuit]` for the packages that this needs.
"""
