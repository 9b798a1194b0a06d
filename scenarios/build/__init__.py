"""Turn the names in a scenario into the objects of a simulation: workload, model, memory, cost,
policies, pools."""
