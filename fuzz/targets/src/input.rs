//! The input, byte by byte.

/// Bytes that decide; zeros once they are used up.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub(crate) fn small(&mut self) -> u64 {
        u64::from(self.byte())
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = usize::from(self.byte());
        from.get(index % from.len().max(1)).copied()
    }

    /// What stands before the next NUL, as text.
    pub(crate) fn text(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0);
        let (taken, rest) = match end {
            Some(end) => (&self.0[..end], &self.0[end + 1..]),
            None => (self.0, &[][..]),
        };
        self.0 = rest;
        String::from_utf8_lossy(taken).into_owned()
    }
}
