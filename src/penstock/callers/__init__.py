"""Who asks for something, and the one place that says whether it may.

A caller is made once for a connection, or for a request where each shows by itself who sends it, and travels down to
where topics are used. What it may do is asked once for each topic and action, and remembered: nothing is asked per
message.
"""

from penstock.callers.caller import Caller
from penstock.callers.gate import Act, Gate
from penstock.callers.rights import OWN, Action, Right, Rule

__all__ = ["OWN", "Act", "Action", "Caller", "Gate", "Right", "Rule"]
