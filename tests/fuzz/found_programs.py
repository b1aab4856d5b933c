"""Programs with wrong logs that random search has found, shrunk.

Each has the check that failed, its seed and the program, as `python -m tests.fuzz`
prints them.
"""

from tests.oracle import Program, Statement

FOUND: list[tuple[str, int, Program]] = [
    # the inner lanes of an outer lane without rows were not counted
    (
        "orders",
        8240,
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
    # results of a branch on a predicate that varies over devices did not vary
    (
        "orders",
        2000421,
        (
            Statement(
                "cond",
                0,
                (
                    (Statement("logging_custom_vjp", 0, ((Statement("update"),),)),),
                    (Statement("watch"),),
                ),
            ),
        ),
    ),
    # the same, of a value that a branch only passes on
    (
        "orders",
        2030289,
        (
            Statement(
                "custom_jvp",
                0,
                (
                    (
                        Statement(
                            "cond",
                            0,
                            ((Statement("log"),), (Statement("watch_nonfinite"),)),
                        ),
                    ),
                ),
            ),
        ),
    ),
    # a constant was a Python number in spooled logs
    ("orders", 2010782, (Statement("checkpoint", 0, ((Statement("log"),),)),)),
    # evaluated with NumPy, all devices got the first one's residual of a branch
    (
        "orders",
        1020085,
        (
            Statement(
                "switch",
                0,
                (
                    (
                        Statement(
                            "fori",
                            2,
                            (
                                (
                                    Statement(
                                        "logging_custom_vjp",
                                        0,
                                        ((Statement("log_constant"),),),
                                    ),
                                ),
                            ),
                        ),
                    ),
                    (Statement("update"),),
                    (Statement("watch"),),
                ),
            ),
        ),
    ),
]
