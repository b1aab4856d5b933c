"""Programs with wrong logs that random search has found, shrunk.

Each has the check that failed, its seed and the program, as `python -m tests.fuzz`
prints them.
"""

from tests.oracle import Program, Statement

FOUND: list[tuple[str, int, Program]] = [
    # the inner lanes of an outer lane without rows were not counted
    (
        "orders",
        5088,
        (
            Statement(
                "cond", 0, ((Statement("log_grad_tree"),), (Statement("log_elements"),))
            ),
            Statement("log_when"),
        ),
    ),
    # the anchor of a differentiated scan did not vary over devices, and a branch did
    (
        "devices",
        1004870,
        (
            Statement(
                kind="scan",
                number=0,
                blocks=(
                    (
                        Statement(
                            kind="cond",
                            number=0,
                            blocks=(
                                (
                                    Statement(
                                        kind="map",
                                        number=0,
                                        blocks=(
                                            (
                                                Statement(
                                                    kind="log", number=0, blocks=()
                                                ),
                                            ),
                                        ),
                                    ),
                                ),
                                (Statement(kind="update", number=0, blocks=()),),
                            ),
                        ),
                    ),
                ),
            ),
        ),
    ),
]
