"""The paper's mathematics: pure functions of explicit arguments, numpy in and numpy out.

Nothing here reads a clock, a file, a socket, the environment or a global random state.

    arguments     the one error for arguments that cannot be meant
    equilibrium   Stage II: which privacy budgets the clients choose for a given reward
    utility       what taking part is worth to a client, and regret of a declared budget
    participation who takes part: invitation by smallest share, withdrawal under fixed costs
    reward        Stage I: which reward costs the server least; reward policies; the server's cost
    planning      one round from the participants to the announced reward and total
    money         integer micro-units and their exact split
    selection     label distance to a reference, and who is kept
    privacy       mechanisms and what they prove, account, readings as (epsilon, delta), label histogram
    noise_audit   is an upload consistent with the declared budget?
    forecast      accuracy curve, its fit, admissible reward range
    aggregation   streaming mean of the updates, server step
"""
