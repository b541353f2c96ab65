"""What `materialize` wrote: elements as bytes, and what stands beside them."""
