"""From a call to its answer: route, lease, deadline, one end."""
