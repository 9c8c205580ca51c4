"""The paper's mathematics: pure functions of explicit arguments, numpy in and numpy out.

Nothing here reads a clock, a file, a socket, the environment or a global random state.

    arguments     checks of arguments, and the error that they raise
    equilibrium   Stage II: the privacy budgets that clients choose for a given reward
    utility       a client's utility, and the regret of a declared budget
    participation which clients take part: invitation by smallest share, withdrawal under fixed costs
    reward        Stage I: the reward with the least cost; reward policies; the server's cost
    capped_reward the same for clients with caps
    round_rules   the rules and participants of a round
    custom_rules  what a user's rules receive, and the check of what they return
    planning      from the participants of a round to the announced reward and total
    money         integer micro-units and their exact split
    selection     label distance to a reference, and which clients are selected
    label_union   the clients whose pooled labels are nearest to a reference
    privacy       mechanisms and their guarantees, account, conversion to (epsilon, delta), label histogram
    noise_audit   whether an upload is consistent with its declared budget
    forecast      accuracy curve, its fit, admissible reward range
    aggregation   streaming mean of the updates, server step
    own_rules     the former name of custom_rules
"""
