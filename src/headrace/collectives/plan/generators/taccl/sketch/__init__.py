"""Communication sketches (TACCL 5.4.1 and B.1), and the logical topologies that they define.

A `Sketch` is read from a file (`load_sketch`) or taken by name (`NAMED`), and written by
`sketch_to_json`; `apply_sketch` turns it and a topology into the `LogicalTopology` that synthesis
works on. `enumerate` derives sketches from a topology.
"""
