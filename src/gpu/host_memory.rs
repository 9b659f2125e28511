//! Tensors of a device that has the host compute lie in the host's memory, where a twin reads them in
//! place.

use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Words of a tensor as they were when they were asked for: seen in place where they lie in the host's
/// memory, else a copy of them.
#[derive(Clone, Debug, Default)]
pub struct Words {
    all: Arc<Vec<u32>>,
    range: Range<usize>,
}

impl Words {
    /// A copy that was made for it.
    pub(crate) fn copied(words: Vec<u32>) -> Words {
        let range = 0..words.len();
        Words {
            all: Arc::new(words),
            range,
        }
    }

    /// Some of them.
    ///
    /// # Panics
    /// When the range leaves them.
    pub(crate) fn part(self, range: Range<usize>) -> Words {
        let words = self.len();
        assert!(
            range.start <= range.end && range.end <= words,
            "{range:?} of {words} words"
        );
        let start = self.range.start;
        Words {
            range: start + range.start..start + range.end,
            ..self
        }
    }
}

impl Deref for Words {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.all[self.range.clone()]
    }
}

/// What an allocator takes from the system alone, and gives back at once. From what it has in stock, it
/// would have to zero what was asked for and given back before, and so touch it.
const LARGE_BYTES: u64 = 64 << 20;

/// The memory of a buffer.
pub(crate) struct HostBuffer {
    /// Whoever sees it holds it as well: what is written meanwhile goes to a copy.
    words: Mutex<Arc<Vec<u32>>>,
    bytes: u64,
}

impl HostBuffer {
    /// Zeros, a multiple of 4 bytes of them; `None` where there is no memory for that many. Pages that
    /// are never touched take none.
    pub fn new(bytes: u64) -> Option<HostBuffer> {
        let count = usize::try_from(bytes / 4).ok()?;
        if bytes >= LARGE_BYTES {
            // zeros are asked for in a way that ends the program where there are none
            Vec::<u32>::new().try_reserve_exact(count).ok()?;
        }
        Some(HostBuffer {
            words: Mutex::new(Arc::new(vec![0; count])),
            bytes,
        })
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Vec<u32>>> {
        // nobody panics in between, and half a copy is no worse than none
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The words of `range` (of bytes, multiples of 4), in place.
    pub fn view(&self, range: Range<u64>) -> Words {
        let words = Words {
            all: self.lock().clone(),
            range: range.start as usize / 4..range.end as usize / 4,
        };
        assert!(range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        words
    }

    fn change(&self, change: impl FnOnce(&mut [u8])) {
        let mut words = self.lock();
        let words: &mut Vec<u32> = Arc::make_mut(&mut *words);
        change(bytemuck::cast_slice_mut(words));
    }

    /// Writes `bytes` from byte `at` on.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.change(|all| all[at..at + bytes.len()].copy_from_slice(bytes));
    }

    /// Writes zeros to `range`, in bytes.
    pub fn clear(&self, range: Range<u64>) {
        self.change(|all| all[range.start as usize..range.end as usize].fill(0));
    }

    /// Copies `range` of `from`, in bytes, to byte `at` on.
    pub fn copy(&self, from: &HostBuffer, range: Range<u64>, at: u64) {
        if std::ptr::eq(self, from) {
            let range = range.start as usize..range.end as usize;
            self.change(|all| all.copy_within(range, at as usize));
        } else {
            self.write(at, bytemuck::cast_slice(&from.view(range)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_stays_and_what_is_written_is_there() {
        let buffer = HostBuffer::new(16).unwrap();
        buffer.write(4, &[1, 0, 0, 0, 2, 0, 0, 0]);
        let seen = buffer.view(4..16);
        assert_eq!(seen[..], [1, 2, 0]);
        buffer.copy(&buffer, 4..12, 8);
        assert_eq!(buffer.view(0..16)[..], [0, 1, 1, 2]);
        assert_eq!(seen[..], [1, 2, 0], "a view is of one moment");
        assert_eq!(seen.part(1..2)[..], [2]);
        let other = HostBuffer::new(8).unwrap();
        other.copy(&buffer, 8..16, 0);
        buffer.clear(4..12);
        assert_eq!(other.view(0..8)[..], [1, 2]);
        assert_eq!(buffer.view(0..16)[..], [0, 0, 0, 2]);
        assert!(HostBuffer::new(u64::MAX - 3).is_none());
    }

    #[test]
    fn without_a_view_nothing_is_copied() {
        let buffer = HostBuffer::new(1 << 20).unwrap();
        let place = |buffer: &HostBuffer| buffer.view(0..4).as_ptr();
        let before = place(&buffer);
        buffer.write(0, &[1, 2, 3, 4]);
        buffer.copy(&buffer, 0..4, 1 << 19);
        assert_eq!(before, place(&buffer));
    }
}
