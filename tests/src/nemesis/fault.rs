//! What a fault is, and which there are. Knows neither when they happen nor what
//! comes of them.

use std::ops::Range;

use super::{draw::Draw, faults, machine::Machine, world::World};

/// Something that is done to a run, and undone.
pub(crate) trait Fault {
    /// Does it, and says what was done. An error says why it could not be done
    /// now; then nothing was, or `heal` undoes it.
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String>;

    /// Undoes it. What every fault leaves behind (links, stopped and missing
    /// processes) is mended after this anyway.
    fn heal(&mut self, _world: &mut World) {}
}

/// What a fault reaches, which says what it can be combined with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Nodes,
    Network,
    Gateways,
    /// Who the members are: a node that is replaced must be the only one missing.
    Members,
    /// Everything at once.
    System,
}

impl Scope {
    /// Whether two faults may be at work at one time.
    pub(crate) fn goes_with(self, other: Self) -> bool {
        use Scope::{Gateways, Members, Network, Nodes, System};
        match (self, other) {
            (System, _) | (_, System) => false,
            (Members, other) | (other, Members) => other == Gateways,
            (Nodes | Network | Gateways, Nodes | Network | Gateways) => true,
        }
    }
}

/// A kind of fault.
#[derive(Clone)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) scope: Scope,
    /// How long it lasts once it is injected, in milliseconds.
    pub(crate) lasts_ms: Range<u64>,
    /// Why this machine cannot do it.
    pub(crate) needs: fn(&Machine) -> Result<(), String>,
    pub(crate) make: fn() -> Box<dyn Fault>,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All kinds.
pub(crate) fn kinds() -> Vec<Kind> {
    faults::all()
}
