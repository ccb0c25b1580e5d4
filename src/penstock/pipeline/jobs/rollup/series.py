"""Series: the id of what is measured, from a name and its tags.

Owns M3's form `m3+name+key=value,key=value`. Invariant: series that differ in name or in any tag have different ids,
and the order in which tags were sent makes no difference.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sql

#: What would end a name, a key or a value inside an id.
_MARKS = r"([\\,=+])"


def series(name: Column, tags: Column) -> Column:
    """Return the id of a series: the name alone where it has no tags; null tags are none.

    `tags` is an array of structs (key, value). Inside an id with tags a backslash stands before `\\`, `,`, `=` and `+`
    that belong to a name, a key or a value.
    """
    pairs = sql.transform(
        sql.sort_array(tags),
        lambda tag: sql.concat(_escaped(tag["key"]), sql.lit("="), _escaped(sql.coalesce(tag["value"], sql.lit("")))),
    )
    tagged = sql.concat(sql.lit("m3+"), _escaped(name), sql.lit("+"), sql.array_join(sql.array_distinct(pairs), ","))
    return sql.when(sql.size(tags) > 0, tagged).otherwise(name)


def _escaped(text: Column) -> Column:
    return sql.regexp_replace(text, sql.lit(_MARKS), sql.lit(r"\\$1"))
