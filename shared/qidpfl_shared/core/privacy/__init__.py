"""Differential privacy as zCDP: what is released, what it guarantees, and what is left.

Neighbouring data sets always differ by *replacing one record*. The number of records is public.

    mechanisms    sensitivity, noise and guarantee of each mechanism
    account       `PrivacyAccount`, the append-only record of what one data set has released
    conversion    rho-zCDP as (epsilon, delta), and back
    views         the guarantee of the whole system, and against an observer of the average only
    histogram     the label histogram under differential privacy
"""
