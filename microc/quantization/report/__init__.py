"""What is told of a quantised network: values, weights, layers, inputs and floats as plain data, advice, and a page of HTML."""
