"""What is predicted: tasks by name, and what those know of them who only check, list or draw (``sargnn.tasks.kinds``)."""

TASKS = {
    "nodes": "sargnn.tasks.nodes:NodeTask",
    "links": "sargnn.tasks.links:LinkTask",
    "edges": "sargnn.tasks.edges:EdgeTask",
    "queries": "sargnn.tasks.queries:QueryTask",
}
