"""A scenario's names into the objects of a simulation: workload, model, memory, cost, policies,
pools."""
