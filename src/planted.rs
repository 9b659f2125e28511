//! Faults that tests plant, to see that the simulation of the scheduler would notice them. In a build
//! that is no test there are none, and the compiler drops every question for one.

/// What can be broken on purpose; each is asked for where it would be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A cancelled sequence keeps its pages.
    ForgetRelease,
    /// Its last page is given back twice.
    ReleaseTwice,
    /// Pages can be found before the step that writes them is done.
    PublishEarly,
    /// A shared page is written to without a copy.
    SkipCopy,
    /// A preempted sequence believes that its tokens are in the cache still.
    StaleComputed,
    /// A page counts as free when one of two owners leaves.
    SharedIsFree,
    /// A page that somebody owns is evicted.
    EvictOwned,
    /// A sequence is admitted without room for the token that it will draw.
    AdmitWithoutOutput,
    /// A preempted sequence goes to the end of the queue.
    RequeueLast,
    /// The last of several answers to a prompt is never begun.
    ForgetSibling,
    /// A page that was evicted is found again.
    KeepKey,
    /// Who waits is not looked at again once nothing runs.
    DropWakeUp,
    /// A page is given back while one more token sees it.
    FreeEarly,
    /// One more of the proposed tokens is accepted than the model agrees with.
    AcceptMore,
    /// What the model drew in place of a proposed token is not its next one: the proposed one is.
    KeepRejected,
    /// Keys and values of rejected tokens count as computed.
    ForgetRollback,
}

#[cfg(test)]
thread_local!(static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) });

/// Whether `fault` is to be made.
#[cfg(test)]
pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Never.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}

/// Runs `work` with `fault` in place.
#[cfg(test)]
pub(crate) fn with<T>(fault: Option<Fault>, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Fault>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PLANTED.set(self.0);
        }
    }
    let _restore = Restore(PLANTED.replace(fault));
    work()
}
