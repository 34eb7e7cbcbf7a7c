/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing, lending and freeing, for two clients and two generations of a
 * table: generation 1 is lent, 2 is built and replaces it.  With BACK it is
 * replaced by 1 again, if 1 is still there.  Steps are those of the code: a
 * store to the control page, a line read or sent by the loop, a row read.
 *
 *	sidecar		the loop's thread: requests, answers, publishing
 *	builder		the thread of the load job
 *	mover		of a client: attaches, polls, moves
 *	reader		of a client: steps of two layers, and the change-over
 *	fate		of a client: killed, or stopped for ever, at any time
 *
 * Each MUTANT is one fault, which test_model.py expects to be found:
 *
 *	1  free the old generation when the new one is published
 *	2  publish before the generation is whole
 *	3  count leases only, not answers that wait to be sent
 *	4  do not make the sequence odd while the page changes
 *	5  change over in the middle of a step
 *	6  forget the leases of a client that was killed
 *	7  wait for the old generation's leases before publishing
 *	8  read the content id between two equal reads of the generation
 *	9  make the sequence even before the generation is stored
 *	10 have the sequence come back to what it was before
 *	11 show no generation while the page changes
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef BACK
#define BACK 0
#endif
#ifndef CLIENTS
#define CLIENTS 2
#endif
#define LEASES(c, g) leases[(c) * 3 + (g)]
#define ANSWERS(g)                                                            \
	((MUTANT != 3) * ((queued[0] == (g)) + (queued[1] == (g))))

mtype = { ABSENT, FILLING, READY, FREED }; /* memory of a generation */
mtype = { ATTACH, DETACH, CLOSED };	   /* what a connection brings */

mtype memory[3];

/* The control page.  A generation's content id is its number here; both are
 * read together between two equal even values of the sequence. */
byte page_generation = 1;
byte page_content = 1;
byte page_sequence;

/* The sidecar's books. */
byte current = 1;
byte users[3]; /* leases, and answers that are not sent */
byte leases[6];
byte newest[2]; /* the generation of the lease given last */
byte queued[2];	/* the generation of an answer that is not sent */
bool built, published, taken_back;

chan request[2] = [4] of { mtype, byte };
chan answer[2] = [1] of { byte };

/* A client's: what it reads, what it shall read next, what it read before. */
byte held[2], next[2], before[2];
bool move[2], killed[2], stopped[2];

inline free_if_idle(g)
{
	if
	:: g != current && users[g] == 0 && memory[g] == READY ->
		memory[g] = FREED
	:: else
	fi
}

inline put(g)
{
	assert(users[g] > 0);
	users[g]--;
	free_if_idle(g)
}

/* What must hold whenever the loop waits for an event. */
inline check_books()
{
	assert(users[1] == LEASES(0, 1) + LEASES(1, 1) + ANSWERS(1));
	assert(users[2] == LEASES(0, 2) + LEASES(1, 2) + ANSWERS(2));
	assert(memory[current] == READY);
	assert(page_generation == current && page_content == current);
	assert(page_sequence % 2 == 0);
	/* Nothing stays that nobody uses. */
	assert(!published || current == 1 || users[1] || memory[1] == FREED);
	assert(current == 2 || users[2] || memory[2] != READY || !published);
	assert(!killed[0] || nempty(request[0]) ||
	       !(LEASES(0, 1) || LEASES(0, 2)));
	assert(!killed[1] || nempty(request[1]) ||
	       !(LEASES(1, 1) || LEASES(1, 2)))
}

inline on_attach(c)
{
	d_step {
		request[c]?ATTACH, 0 ->
		LEASES(c, current)++;
		users[current]++;
		if
		:: MUTANT != 3 -> users[current]++
		:: else
		fi;
		queued[c] = current;
		newest[c] = current;
		check_books()
	}
}

inline on_send(c)
{
	d_step {
		queued[c] && nfull(answer[c]) ->
		/* The descriptors must be those of this generation still. */
		assert(memory[queued[c]] == READY);
		answer[c]!queued[c];
		g = queued[c];
		queued[c] = 0;
		if
		:: MUTANT != 3 -> put(g)
		:: else
		fi;
		g = 0;
		check_books()
	}
}

inline on_detach(c)
{
	d_step {
		request[c]?DETACH, g ->
		if
		:: g == 0 -> g = newest[c]
		:: else
		fi;
		assert(LEASES(c, g) > 0);
		LEASES(c, g)--;
		put(g);
		g = 0;
		check_books()
	}
}

inline end_leases(c, g)
{
	do
	:: LEASES(c, g) ->
		LEASES(c, g)--;
		put(g)
	:: else -> break
	od
}

inline on_closed(c)
{
	d_step {
		request[c]?CLOSED, 0 ->
		g = queued[c];
		queued[c] = 0;
		if
		:: g && MUTANT != 3 -> put(g)
		:: else
		fi;
		g = 0;
		if
		:: MUTANT == 6
		:: else ->
			end_leases(c, 1);
			end_leases(c, 2)
		fi;
		check_books()
	}
}

/* Stores that a client may see one at a time; the one of the generation is
 * what publishes. */
inline store_page(to)
{
	if
	:: MUTANT != 4 -> page_sequence++
	:: else
	fi;
	if
	:: MUTANT == 11 -> page_generation = 0
	:: else
	fi;
	page_content = to;
	if
	:: MUTANT == 9 -> page_sequence++; page_generation = to
	:: MUTANT == 10 -> page_generation = to; page_sequence--
	:: MUTANT == 4 -> page_generation = to; page_sequence = page_sequence + 2
	:: else -> page_generation = to; page_sequence++
	fi
}

inline replace(from, to)
{
	store_page(to);
	d_step {
		current = to;
		if
		:: MUTANT == 1 -> memory[from] = FREED
		:: else -> free_if_idle(from)
		fi
	}
}

active proctype sidecar()
{
	byte g;

	memory[1] = READY;
end:
	do
	:: on_attach(0)
	:: on_attach(1)
	:: on_detach(0)
	:: on_detach(1)
	:: on_closed(0)
	:: on_closed(1)
	:: on_send(0)
	:: on_send(1)
	:: built && !published && (MUTANT != 7 || users[1] == 0) ->
		replace(1, 2);
		d_step { published = true; check_books() }
	:: BACK && published && !taken_back && memory[1] == READY ->
		replace(2, 1);
		d_step { taken_back = true; check_books() }
	od
}

active proctype builder()
{
	memory[2] = FILLING;
	if
	:: MUTANT == 2 -> built = true; memory[2] = READY
	:: else -> memory[2] = READY; built = true
	fi
}

/* engram_table_poll: there is a generation at all times. */
inline poll_page()
{
	g = page_generation;
	assert(g != 0)
}

/* engram_control_current: what it gives belongs together. */
inline read_current()
{
	atomic { page_sequence % 2 == 0 -> sequence = page_sequence };
	g = page_generation;
	id = page_content;
	atomic {
		assert(id == g || (MUTANT == 8 -> g != page_generation :
						  sequence != page_sequence));
		g = 0;
		id = 0;
		sequence = 0
	}
}

/* Lease numbers can be guessed: ask, and let go before the answer. */
inline ask_and_leave(c)
{
	request[c]!ATTACH, 0;
	request[c]!DETACH, 0;
	answer[c]?g;
	g = 0
}

inline move_on(c)
{
	request[c]!ATTACH, 0;
	answer[c]?g;
	assert(memory[g] == READY); /* mapped */
	if
	:: MUTANT == 5 -> atomic { before[c] = held[c]; held[c] = g; g = 0 }
	:: else ->
		atomic { next[c] = g; move[c] = true; g = 0 };
		!move[c]
	fi;
	if
	:: before[c] -> request[c]!DETACH, before[c]
	:: else
	fi
}

proctype mover(byte c)
{
	byte g, id, sequence;

	{
end:
		do
		:: c == 0 -> read_current()
		:: poll_page();
			if
			:: g != held[c] -> g = 0; move_on(c)
			:: g != held[c] && c == 0 ->
				g = 0;
				ask_and_leave(c)
			:: else -> g = 0
			fi
		od
	} unless { killed[c] || stopped[c] }
}

proctype reader(byte c)
{
	byte first;

	{
end:
		do
		:: atomic {
				move[c] ->
				before[c] = held[c];
				held[c] = next[c];
				move[c] = false
			}
		:: atomic {
				!move[c] && held[c] ->
				first = held[c];
				assert(memory[first] == READY)
			};
			atomic {
				assert(memory[held[c]] == READY);
				assert(held[c] == first);
				first = 0
			}
		od
	} unless { killed[c] || stopped[c] }
}

proctype fate(byte c)
{
	if
	:: true
	:: stopped[c] = true
	:: atomic {
			nfull(request[c]) ->
			killed[c] = true;
			request[c]!CLOSED, 0
		}
	fi
}

/* Nobody can take another step: all clients are killed or stopped.  What was
 * built is published all the same, and what is not held is gone. */
active proctype end_of_all()
{
	timeout ->
	assert(published);
	check_books()
}

init {
	atomic {
		run mover(0);
		run reader(0);
		run fate(0);
		if
		:: CLIENTS == 2 ->
			run mover(1);
			run reader(1);
			run fate(1)
		:: else
		fi
	}
}
