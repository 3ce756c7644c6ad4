"""Timing closure on an ECP5 after place and route: paths that miss the clock are shortened.

`nextpnr` calls place and route, `placed` reads and writes a circuit as that leaves it, `delays` reads what
its wires and cells take; `timing` tells which paths are late, `tiles` knows which cells may lie together, and
`closure` moves those that lie badly.
"""
