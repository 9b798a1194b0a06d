"""Who asks what, when: trace readers, transforms and a generator, all giving a `RequestTable`."""
