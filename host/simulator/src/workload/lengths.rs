//! How long requests are.

use cellwright_cell_graph::Random;

/// Longer requests are refused: their graphs would be.
pub const LENGTH_MAX: u32 = 100_000;

/// A distribution of lengths.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// All the same.
    Fixed(u32),
    /// `exp(N(mu, sigma²))`, rounded and clipped to 1..=max.
    Lognormal {
        /// Mean of the logarithm.
        mu: f64,
        /// Its standard deviation.
        sigma: f64,
        /// The longest.
        max: u32,
    },
    /// Each length as often as it was seen, clipped to 1..=max.
    Seen {
        /// (length, how many requests are no longer), ascending in both.
        up_to: Vec<(u32, u64)>,
        /// The longest.
        max: u32,
    },
}

impl Lengths {
    /// English sentences of Europarl as BatchMaker had them: mean 24, 99 % under 100, longest 330 (section 7.1 and figure 10).
    pub const EUROPARL: Self = Self::Lognormal { mu: 2.95, sigma: 0.68, max: 330 };

    /// The same, none longer than that.
    #[must_use]
    pub fn clipped(self, longest: u32) -> Self {
        let longest = longest.clamp(1, LENGTH_MAX);
        match self {
            Self::Fixed(length) => Self::Fixed(length.min(longest)),
            Self::Lognormal { mu, sigma, max } => Self::Lognormal { mu, sigma, max: max.min(longest) },
            Self::Seen { up_to, max } => Self::Seen { up_to, max: max.min(longest) },
        }
    }

    /// Lengths that were counted: (length, how many).
    #[must_use]
    pub fn seen(counts: &[(u32, u64)]) -> Option<Self> {
        let mut counts: Vec<(u32, u64)> = counts.iter().copied().filter(|(_, count)| *count > 0).collect();
        counts.sort_unstable();
        let mut total = 0_u64;
        for (length, count) in &mut counts {
            *length = (*length).clamp(1, LENGTH_MAX);
            total = total.checked_add(*count)?;
            *count = total;
        }
        (!counts.is_empty()).then_some(Self::Seen { up_to: counts, max: LENGTH_MAX })
    }

    /// The next one, at least 1.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Self::Fixed(length) => (*length).clamp(1, LENGTH_MAX),
            Self::Lognormal { mu, sigma, max } => (mu + sigma * random.normal()).exp().round().clamp(1.0, f64::from(*max)) as u32,
            Self::Seen { up_to, max } => {
                let all = up_to.last().map_or(1, |(_, all)| *all);
                let one = random.next() % all;
                let at = up_to.partition_point(|(_, seen)| *seen <= one);
                up_to.get(at).map_or(1, |(length, _)| (*length).min(*max))
            }
        }
    }
}

/// Lengths of what goes in and of what comes out.
#[derive(Clone, Debug, PartialEq)]
pub enum Pairs {
    /// The output is `exp(N(0, sigma²))` times as long as the input, clipped to 1..=max.
    Ratio {
        /// Of the input.
        source: Lengths,
        /// Spread of the logarithm of the ratio.
        sigma: f64,
        /// The longest output.
        max: u32,
    },
    /// Any of those.
    Listed(Vec<(u32, u32)>),
}

impl Pairs {
    /// German and English sentences of Europarl. BatchMaker says nothing of how their lengths go together; 0.2 is what sentence pairs of that corpus have.
    pub const EUROPARL: Self = Self::Ratio { source: Lengths::EUROPARL, sigma: 0.2, max: 330 };

    /// As long out as in.
    #[must_use]
    pub const fn equal(lengths: Lengths) -> Self {
        Self::Ratio { source: lengths, sigma: 0.0, max: LENGTH_MAX }
    }

    /// The same, none longer than that.
    #[must_use]
    pub fn clipped(self, longest: u32) -> Self {
        match self {
            Self::Ratio { source, sigma, max } => Self::Ratio { source: source.clipped(longest), sigma, max: max.min(longest.max(1)) },
            Self::Listed(pairs) => {
                let clip = |length: u32| length.clamp(1, longest.max(1));
                Self::Listed(pairs.into_iter().map(|(source, target)| (clip(source), clip(target))).collect())
            }
        }
    }

    /// The next one, each at least 1.
    pub fn draw(&self, random: &mut Random) -> (u32, u32) {
        match self {
            Self::Ratio { source, sigma, max } => {
                let source = source.draw(random);
                if *sigma <= 0.0 {
                    return (source, source.min(*max));
                }
                let target = (f64::from(source) * (sigma * random.normal()).exp()).round();
                (source, target.clamp(1.0, f64::from(*max)) as u32)
            }
            Self::Listed(pairs) => pairs.get(random.below(pairs.len().max(1))).copied().unwrap_or((1, 1)),
        }
    }
}
