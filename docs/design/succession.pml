/* succession.pml -- who may make the next view when the coordinator's node is gone or cut off, for spin.
 *
 * Three nodes. A cut divides them, heals and divides them again; the first coordinator is node 0.
 *
 *   a candidate   raises its term, and asks for votes; a node gives one vote a term (kept on disk), and only to one
 *                 whose newest view is not older than its own (term in which it was made, then generation)
 *   a view        generation g + 1 is offered by the coordinator of a term; nodes that have heard of no later term
 *                 accept it (on disk). It holds when majorities of the members of view g and of its own have
 *                 accepted it; a vote needs the same two (with three nodes either alone was enough, too)
 *
 * What must hold: a generation has one view, whoever made it; and views that hold form one line: each was made
 * from the one before it. Left out with -D: BUG_TWICE (votes are not kept), BUG_OLD (anybody may be voted for),
 * BUG_MINORITY (who is reached is enough). */
#define N 3
#ifndef TERMS
#define TERMS 3
#endif
#define VIEWS 4 /* generations 1 .. VIEWS - 1 */

byte cut;            /* a bit for each node: which side it is on */
byte cuts;
byte term[N];        /* durable: the highest heard of, */
byte voted[N];       /* whom it voted for in that term (1 + node; 0: nobody), */
byte made[N];        /* the term in which its newest view was made, */
byte gen[N] = 1;     /* and its generation */
byte mask[N] = 7;    /* members of that view */
byte base[N] = 7;    /* members of the view that it was made from */
bool lead[N];        /* not durable; coordinator of term[i] */
byte votes[N];       /* bits, as a candidate in term[i]; 0: none */
byte taken[N];       /* bits: who accepted what it offers; 0: nothing is offered */

byte holds[VIEWS];   /* members of the view that holds, by generation; */
byte holds_from[VIEWS]; /* and of the one it was made from */

#define SAME(i, j) ((cut >> i & 1) == (cut >> j & 1))
#define BIT(i) (1 << (i))
#define COUNT(m) (((m) & 1) + ((m) >> 1 & 1) + ((m) >> 2 & 1))
#ifdef BUG_MINORITY
#define ENOUGH(who, of) (COUNT((who) & (of)) > 0)
#else
#define ENOUGH(who, of) (2 * COUNT((who) & (of)) > COUNT(of))
#endif
#define BOTH(who) (ENOUGH(who, mask[me]) && ENOUGH(who, base[me]))
#ifdef BUG_OLD
#define UP_TO_DATE(i, j) true
#else
#define UP_TO_DATE(i, j) (made[i] > made[j] || (made[i] == made[j] && gen[i] >= gen[j]))
#endif

inline hear(j, t) /* of a later term: whoever led or hoped in an older one gives up */
{
    if
    :: t > term[j] -> term[j] = t; voted[j] = 0; lead[j] = false; votes[j] = 0; taken[j] = 0
    :: else
    fi
}

proctype Node(byte me)
{
    byte j;
end:
    do
    /* hope */
    :: atomic { !lead[me] && term[me] < TERMS && (mask[me] >> me & 1) && term[0] + term[1] + term[2] < 2 * TERMS ->
                term[me]++; voted[me] = me + 1; votes[me] = BIT(me); taken[me] = 0 }
    /* ask for a vote */
    :: atomic { votes[me] > 0 && !lead[me] ->
        if
        :: j = 0
        :: j = 1
        :: j = 2
        fi;
        if
        :: j != me && SAME(me, j) && term[me] >= term[j] ->
            hear(j, term[me]);
            if
#ifdef BUG_TWICE
            :: UP_TO_DATE(me, j) -> votes[me] = votes[me] | BIT(j)
#else
            :: UP_TO_DATE(me, j) && (voted[j] == 0 || voted[j] == me + 1) ->
                voted[j] = me + 1; votes[me] = votes[me] | BIT(j)
#endif
            :: else
            fi
        :: j != me && SAME(me, j) && term[me] < term[j] -> hear(me, term[j])
        :: else
        fi;
        j = 0 }
    :: atomic { votes[me] > 0 && !lead[me] && BOTH(votes[me]) ->
                lead[me] = true; votes[me] = 0 }
    /* offer a view of those on this side, and perhaps fewer */
    :: atomic { lead[me] && taken[me] == 0 && gen[me] < VIEWS - 1 &&
                ENOUGH((BIT(0) * SAME(me, 0) | BIT(1) * SAME(me, 1) | BIT(2) * SAME(me, 2)), mask[me]) ->
                base[me] = mask[me];
                if
                :: mask[me] = mask[me] & (BIT(0) * SAME(me, 0) | BIT(1) * SAME(me, 1) | BIT(2) * SAME(me, 2))
                :: mask[me] = BIT(0) * SAME(me, 0) | BIT(1) * SAME(me, 1) | BIT(2) * SAME(me, 2) /* who is back joins */
                fi;
                gen[me]++; made[me] = term[me]; taken[me] = BIT(me) }
    :: atomic { lead[me] && taken[me] > 0 ->
        if
        :: j = 0
        :: j = 1
        :: j = 2
        fi;
        if
        :: j != me && SAME(me, j) && term[j] <= term[me] ->
            hear(j, term[me]);
            gen[j] = gen[me]; made[j] = made[me]; mask[j] = mask[me]; base[j] = base[me];
            taken[me] = taken[me] | BIT(j)
        :: j != me && SAME(me, j) && term[j] > term[me] -> hear(me, term[j])
        :: else
        fi;
        j = 0 }
    /* it holds */
    :: atomic { lead[me] && taken[me] > 0 && BOTH(taken[me]) ->
                assert(holds[gen[me]] == 0 || (holds[gen[me]] == mask[me] && holds_from[gen[me]] == base[me]));
                assert(holds[gen[me] - 1] == 0 || holds[gen[me] - 1] == base[me]);
                holds[gen[me]] = mask[me]; holds_from[gen[me]] = base[me]; taken[me] = 0 }
    od
}

proctype Cutter()
{
end:
    do
    :: atomic { cuts < 2 -> cuts++;
        if
        :: cut = 0
        :: cut = 1
        :: cut = 2
        :: cut = 4
        fi }
    :: cuts == 2 -> break
    od
}

init {
    atomic {
        lead[0] = true; term[0] = 1; voted[0] = 1; term[1] = 1; voted[1] = 1; term[2] = 1; voted[2] = 1;
        holds[1] = 7; holds_from[1] = 7;
        run Node(0); run Node(1); run Node(2); run Cutter()
    }
}
