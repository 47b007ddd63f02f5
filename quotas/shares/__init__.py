"""Which share of each limit an instance of a fleet enforces, decided from what all instances claim. Pure.

`member.Member` decides for one instance of one virtual cluster. Instances exchange documents (`document`); who carries
them must keep what `Member` says about its methods `published` and `view`.

The rules, for one key, and why the enforced shares never add up to more than 1:

1. A key that nobody claims has the implicit share (TOTAL / N, and a floor) at each of the N members.
2. A member whose clients are throttled enters the key: it claims what it has, and publishes that. Every other member
   acknowledges by a document that has been made after it saw the new claim. In that document it either claims the key,
   too, or it has gone down to the floor before. So when all have acknowledged, no share but the floors is invisible.
3. A claim is published before it is enforced, and lowered before the lower one is published: what is published is
   never less than what is enforced. A member that is short publishes its fair part at once, so that others see it and
   lower theirs. It enforces of it, when it is acknowledged, what the claims of all others in the view leave; the view
   holds everything that was ordered before that claim. Of all claims in force, look at the one that was ordered last:
   its author saw all others.
4. A new member reads the others after it was created itself, and stays on the floor until all others have seen it, so
   that all members which are past that know each other.
5. A member that does not hear from the others has at most an equal part of each key. When the others have lost its
   record it begins as a new member.
"""
