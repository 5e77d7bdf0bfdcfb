"""The long proofs, each a program: `python -m tests.proof.sim`, `.explore`, `.mutants` and others.

sim, explore         random and exhaustive runs of the shipping consensus on a simulated world
mutants              each rule taken out of the source once
fuzz                 random bytes for whatever reads bytes
chaos, recoveries    real processes: faults, and recoveries compared with replayed history
drill                real processes: incidents, and the answer of every view of an operator
soak                 all of them with fresh seeds
"""
