"""What a snapshot is: a git-format store, faithful capture, exact rollback.

The rooms, lowest first; each imports only rooms of its own line and above, and `watcher` imports
core, never the other way. No sockets, no argv, no environment, no printing. Its threads: two that
compress, a few that sync and unlink files, and one that writes while another one reads (a large
file whose id is being found out, what a rollback is to bring), which stay for the next write; and
now and then one that folds SQLite's log. Its processes: a scout, which helps with looks at large
trees and stays, and git where a store is repacked or a predecessor's is read.

  model, errors: values and failures: the words of turnmark
  proofs: what stat says of names, and whether it says so still
  libc, aside: the C library; threads beside the one that asks
  disk, beneath: the file verbs that everything else uses, and directories below one root
  deflate, spares: compression; files made ahead, for writes that somebody waits for
  order: contents before names, names before later names, and what that takes
  objects, packform: git objects, and the format of packs, to bytes and back
  packs, packing, whereabouts: packs read and checked; packs written; which of them holds what
  reserve, refs: a megabyte to give up; references
  ahead: a log of what was answered, until it is durable where it belongs
  writer, store: the objects of one change; all of them, locks, layout
  gitignore, rules, about: .gitignore syntax; what is captured; what a git tree cannot say of it
  roots: which directories may be watched, and what they are called
  reading: one file, whole or known to be torn
  scout, station: a process of its own that says whether directories are as on record; its keeper
  worktree, listing: the tree as last seen, kept as a cache; names and stats to compare with it
  inforce, splice, scouting: rules where a look is; records with new contents; what a scout is asked
  scan: the look that brings what is known of the tree up to date
  gitcontext: what the user's own git says of a moment
  diff, lines, renames: trees and lines compared; what came again under another name
  begun: which turns are open, and how far each session has counted
  history, recorder: snapshots and marks as commits and tags; the one place where history grows
  patch, merge: patches written; three texts made one
  counts, undo, turns: lines counted once; what undo takes back; where a turn begins and ends
  attribution, timeline: who made what changed; the points that a user sees and names
  versions, follow: when a name or a text was there; one path over all snapshots and its renames
  plan, states, edits: what a rollback would do, from and to where; whose edits it would take back
  journal, staging, apply: what is unfinished; what waits beside the tree; the steps in it
  staged, rollback, together: one pass, ready to go on; the whole of it; several as one
  without, revert: the workspace without what some turns changed; making it so
  consolidate, sweep, deep: few packs of many; without what is dead; as small as git makes them
  keeping, presence: what of a history stays; whether its directory is there
  retention, clear: a store without what does not stay; removing it
  verify, rescue, repair, backup: keeping it whole, and a copy elsewhere
  sessions, imports: agents' own states of their sessions; stores of the predecessor

Invariants, each with a test that fails if it breaks:

 1. A reference is made only after everything it reaches is synced, in place and read back; where
    a journal keeps the order, written out is enough: one sync at the end makes all of it last. Or
    all of it, with the reference, is synced and read back in a log (`ahead`), by which whoever
    opens the store after a crash puts it in place; and it counts only on what is durable.
 2. References of snapshots and marks are created once and never moved; dropping one
    renames nothing.
 3. An acknowledgement is a return value that comes after the read-back; an error is an exception.
 4. The cache of what was seen is written after the reference. It may lag, it may be lost; nothing
    that it says is believed unless the newest snapshot, or the store, holds the object in question.
 5. Looking writes nothing into the workspace, follows no link, waits for no FIFO, leaves no root.
 6. What could not be captured is listed as a gap. A gap is never a deletion.
 7. A rollback begins with a complete durable snapshot, changes only paths that it and the target
    both looked at, and unlinks nothing that a referenced snapshot does not hold.
 8. Objects go away only under the exclusive lock, when no log holds anything any more and after the
    references that reached them, and every such moment raises the generation: others then believe
    their records only as far as the newest snapshot is still referenced, and ask for every object
    at their next full look.
 9. Locks are flock: the kernel gives them back when their holder dies.
"""
