"""Numbers in text: which texts are numbers, and what Spark makes of them without ever failing.

Invariant: no text raises. Java reads "1d", "0x1p3" and " 1 " as doubles; here they are none.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

#: Every quantifier is possessive: Java's regular expressions recurse where they could go back, and a long text would
#: then be the end of the query.
NUMBER = r"^[+-]?+(?:[0-9]++\.?+[0-9]*+|\.[0-9]++)(?:[eE][+-]?+[0-9]++)?+\z"
#: The same, and what is no number or has no end.
FLOAT = rf"{NUMBER}|^(?i:nan|[+-]?+inf(?:inity)?+)\z"

#: The end of the year 2199: a window that holds it still ends at a time in nanoseconds of 64 bits.
TIME_US_MAX = 7_258_118_400_000_000


def double(text: Column, pattern: str = NUMBER) -> Column:
    """Return the double a text means, or null; digits beyond what a double holds are null as well."""
    number = text.try_cast("double")
    is_finite = sql.abs(number) < float("inf")
    if pattern == NUMBER:
        return sql.when(text.rlike(NUMBER) & is_finite, number)
    return sql.when(text.rlike(pattern) & (is_finite | ~text.rlike(NUMBER)), number)


def whole(number: Column) -> Column:
    """Return the 64-bit integer a double is, or null."""
    # Spark gives the greatest integer for 2^63, which is none.
    fits = (number >= -(2.0**63)) & (number < 2.0**63)
    return sql.when(fits & (number == sql.rint(number)), number.try_cast("bigint"))


def scaled(text: Column, factor: int) -> Column:
    """Return an integer in text times a factor, or null."""
    return sql.try_multiply(text.try_cast("bigint"), sql.lit(factor).cast("bigint"))
