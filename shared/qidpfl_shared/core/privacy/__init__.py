"""Differential privacy as zCDP: what is released, what it proves, what is left.

Everywhere: neighbouring data sets differ by *replacing one record*, and the number of records is public.

    mechanisms    sensitivity, noise and true guarantee of each mechanism
    account       `PrivacyAccount`, the append-only record of what one data set has released
    conversion    rho-zCDP read as (epsilon, delta), and back
    views         what holds for the whole system, and for somebody who sees only the average
    histogram     the label histogram under differential privacy
"""
