"""Markets: who may sell privacy budget in a round, how much, and for which payment. One module per market.

`design` has the interface that all markets share; docs/markets.md has the equations and what each market guarantees.
"""
