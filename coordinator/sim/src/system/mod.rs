//! The product in virtual time: the real ledger, the real lease policy and the
//! real client core, and a network of the simulator's between them. Nothing of
//! the product is replaced but its sockets, its disk and its clocks.

mod clock;
mod coordinator;
mod gateway;
mod network;
mod setup;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
};

use leasehold_spend::message::{Incoming, Outgoing};
use rand::Rng as _;

pub use coordinator::Load;
use setup::merged;
pub use setup::{Fault, FaultKind, Network, RequestPatience, Setup, promise_of, shipped_policy};

use self::{
    clock::DriftingClock,
    coordinator::{Class, Coordinator},
    gateway::{Connection, Gateway, Said, answer},
    network::Links,
};
use crate::{
    limiter::{Limiter, Messages, Work},
    request::{Answer, Request, Verdict},
    traffic::{Randomness, randomness},
};

/// What happens at some moment.
#[derive(Debug)]
enum Event {
    /// A message reaches the coordinator.
    Up(Connection, Said),
    /// A message reaches a gateway.
    Down(Connection, Incoming),
    /// A broken connection is noticed by its gateway.
    Reset(Connection),
    /// The coordinator looks whether an entry is due.
    Entry,
    /// The entry in flight is applied.
    Applied(u64),
    /// A gateway looks at what it has to do.
    Wake(usize),
    /// A fault begins, or is over.
    Begin(FaultKind, u64),
    End(FaultKind),
}

/// How a gateway is.
#[derive(Debug, Default)]
struct Condition {
    crashed: bool,
    partitioned: bool,
    frozen_until_us: u64,
    /// Requests that came while it was frozen.
    pending: VecDeque<Request>,
}

/// The product, with as many gateways and keys as its setup says.
#[derive(Debug)]
pub struct Leasehold {
    setup: Setup,
    now_us: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    next_connection: u64,
    coordinator: Coordinator,
    gateways: Vec<Gateway>,
    conditions: Vec<Condition>,
    /// When each gateway's next wake is queued.
    wakes_us: Vec<u64>,
    entry_us: u64,
    round: u64,
    owners: BTreeMap<Connection, usize>,
    links: Links,
    keys: Vec<String>,
    rng: Randomness,
    messages: Messages,
    work: Work,
    said: Vec<Said>,
}

impl Leasehold {
    /// Everything as it is when the gateways and the coordinator have just started.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let mut rng = randomness(setup.seed, 1);
        let keys: Vec<String> = (0..setup.policies.len())
            .map(|number| format!("key-{number}"))
            .collect();
        let coordinator = Coordinator::new(&setup, &keys, randomness(setup.seed, 2));
        let gateways: Vec<Gateway> = (0..setup.gateways)
            .map(|_| Gateway::new(draw_clock(&setup, &mut rng), &keys, setup.patience, 0))
            .collect();
        let mut leasehold = Self {
            now_us: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_connection: 1,
            coordinator,
            conditions: (0..setup.gateways).map(|_| Condition::default()).collect(),
            wakes_us: vec![u64::MAX; setup.gateways],
            gateways,
            entry_us: u64::MAX,
            round: 0,
            owners: BTreeMap::new(),
            links: Links::new(setup.network, randomness(setup.seed, 3)),
            keys,
            rng,
            messages: Messages::default(),
            work: Work::default(),
            said: Vec::new(),
            setup,
        };
        leasehold.coordinator.win(0);
        leasehold.look_at_coordinator();
        let interval_us = leasehold.setup.settings.sync_interval_us.max(1);
        for gateway in 0..leasehold.setup.gateways {
            // Processes do not start at the same moment, so that their regular syncs
            // are spread over the interval.
            let starts_us = leasehold.rng.random_range(0..interval_us);
            leasehold.wake(gateway, starts_us);
        }
        for fault in merged(&leasehold.setup.faults) {
            leasehold.at(fault.at_us, Event::Begin(fault.kind, fault.for_us));
        }
        leasehold
    }

    /// What the coordinator has done so far.
    #[must_use]
    pub fn load(&self) -> Load {
        self.coordinator.load
    }

    /// Whether the coordinator's books are in order.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn check(&self) -> Result<(), String> {
        self.coordinator
            .ledger()
            .check()
            .map_err(|violation| format!("{violation:?}"))
    }

    /// The coordinator's digest, which is equal for equal books.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.coordinator.ledger().digest()
    }

    fn at(&mut self, at_us: u64, event: Event) {
        self.queue.push(Reverse((at_us, self.next_event)));
        self.events.insert(self.next_event, event);
        self.next_event += 1;
    }

    fn wake(&mut self, gateway: usize, at_us: u64) {
        let at_us = at_us
            .max(self.now_us)
            .max(self.conditions[gateway].frozen_until_us);
        if at_us < self.wakes_us[gateway] {
            self.wakes_us[gateway] = at_us;
            self.at(at_us, Event::Wake(gateway));
        }
    }

    fn look_at_coordinator(&mut self) {
        if let Some(due_us) = self.coordinator.due_us(self.now_us)
            && due_us.max(self.now_us) < self.entry_us
        {
            self.entry_us = due_us.max(self.now_us);
            self.at(self.entry_us, Event::Entry);
        }
    }

    fn is_frozen(&self, gateway: usize) -> bool {
        self.conditions[gateway].frozen_until_us > self.now_us
    }

    fn happen(&mut self, event: Event, answers: &mut Vec<Answer>) {
        match event {
            Event::Up(connection, said) => {
                if self
                    .owners
                    .get(&connection)
                    .is_some_and(|gateway| !self.conditions[*gateway].partitioned)
                {
                    self.coordinator.receive(connection, said);
                }
            }
            Event::Down(connection, message) => self.deliver(connection, message, answers),
            Event::Reset(connection) => {
                if let Some(&gateway) = self.owners.get(&connection) {
                    if self.is_frozen(gateway) {
                        let until_us = self.conditions[gateway].frozen_until_us;
                        self.at(until_us, Event::Reset(connection));
                        return;
                    }
                    self.owners.remove(&connection);
                    self.gateways[gateway].reset(connection, self.now_us);
                    self.run(gateway, answers);
                }
            }
            Event::Entry => {
                if self.entry_us != self.now_us {
                    return;
                }
                self.entry_us = u64::MAX;
                if self.coordinator.is_due(self.now_us) {
                    self.coordinator.propose(self.now_us);
                    self.round += 1;
                    if self.setup.commit_us == 0 {
                        self.coordinator.settle();
                    } else {
                        let applied_us = self.now_us.saturating_add(self.setup.commit_us);
                        self.at(applied_us, Event::Applied(self.round));
                    }
                }
            }
            Event::Applied(round) => {
                if round == self.round {
                    self.coordinator.settle();
                }
            }
            Event::Wake(gateway) => {
                if self.wakes_us[gateway] != self.now_us {
                    return;
                }
                self.wakes_us[gateway] = u64::MAX;
                self.resume(gateway, answers);
            }
            Event::Begin(kind, for_us) => self.begin(kind, for_us, answers),
            Event::End(kind) => self.end(kind),
        }
    }

    /// A gateway runs: first what came while it did not.
    fn resume(&mut self, gateway: usize, answers: &mut Vec<Answer>) {
        if self.conditions[gateway].crashed || self.is_frozen(gateway) {
            return;
        }
        while let Some(request) = self.conditions[gateway].pending.pop_front() {
            answers.extend(self.gateways[gateway].request(&request, self.now_us));
        }
        self.connect(gateway);
        self.run(gateway, answers);
    }

    fn connect(&mut self, gateway: usize) {
        if self.gateways[gateway]
            .connects_us()
            .is_none_or(|at_us| at_us > self.now_us)
        {
            return;
        }
        let connection = Connection(self.next_connection);
        self.next_connection += 1;
        // Whatever is still on its way on an older one counts for nothing.
        self.owners.retain(|_, owner| *owner != gateway);
        self.owners.insert(connection, gateway);
        let open = self.gateways[gateway].connected(connection, self.now_us);
        self.send_up(connection, Said::Open(open));
    }

    fn run(&mut self, gateway: usize, answers: &mut Vec<Answer>) {
        let connection = self.gateways[gateway].connection();
        let mut said = std::mem::take(&mut self.said);
        self.gateways[gateway].work(self.now_us, &mut said, answers);
        for message in said.drain(..) {
            if let Some(connection) = connection {
                self.send_up(connection, message);
            }
        }
        self.said = said;
        if let (Some(before), None) = (connection, self.gateways[gateway].connection()) {
            // It left: the coordinator is told by the connection's end.
            self.coordinator.lose_connection(before);
            self.owners.remove(&before);
        }
        if let Some(at_us) = self.gateways[gateway].wakes_us() {
            self.wake(gateway, at_us.max(self.now_us + 1));
        }
    }

    fn deliver(&mut self, connection: Connection, message: Incoming, answers: &mut Vec<Answer>) {
        let Some(&gateway) = self.owners.get(&connection) else {
            return;
        };
        let condition = &self.conditions[gateway];
        if condition.partitioned || condition.crashed {
            return;
        }
        if self.is_frozen(gateway) {
            // It lies in a socket's buffer.
            let until_us = condition.frozen_until_us;
            self.at(until_us, Event::Down(connection, message));
            return;
        }
        self.gateways[gateway].hear(connection, message, self.now_us);
        self.run(gateway, answers);
    }

    fn begin(&mut self, kind: FaultKind, for_us: u64, answers: &mut Vec<Answer>) {
        let until_us = self.now_us.saturating_add(for_us);
        match kind {
            FaultKind::Crash { gateway } if gateway < self.gateways.len() => {
                self.gateways[gateway].die(self.now_us, answers);
                for request in self.conditions[gateway].pending.drain(..) {
                    answers.push(answer(request.id, self.now_us, Verdict::Unavailable, true));
                }
                self.conditions[gateway].crashed = true;
                self.conditions[gateway].frozen_until_us = 0;
                let mine: Vec<Connection> = self
                    .owners
                    .iter()
                    .filter(|(_, owner)| **owner == gateway)
                    .map(|(connection, _)| *connection)
                    .collect();
                for connection in mine {
                    self.owners.remove(&connection);
                    self.coordinator.lose_connection(connection);
                }
                self.at(until_us, Event::End(kind));
            }
            FaultKind::Partition { gateway } if gateway < self.gateways.len() => {
                self.conditions[gateway].partitioned = true;
                self.at(until_us, Event::End(kind));
            }
            FaultKind::Freeze { gateway } if gateway < self.gateways.len() => {
                let condition = &mut self.conditions[gateway];
                condition.frozen_until_us = condition.frozen_until_us.max(until_us);
                self.wakes_us[gateway] = u64::MAX;
                self.wake(gateway, until_us);
            }
            FaultKind::LeaderLoss => {
                self.round += 1;
                self.coordinator.lose_leader();
                for connection in self.owners.keys().copied().collect::<Vec<_>>() {
                    let noticed_us = self.links.arrives_us(connection, false, self.now_us);
                    self.at(noticed_us, Event::Reset(connection));
                }
                self.at(until_us, Event::End(kind));
            }
            // A gateway that does not exist does not fail.
            FaultKind::Crash { .. } | FaultKind::Partition { .. } | FaultKind::Freeze { .. } => {}
        }
    }

    fn end(&mut self, kind: FaultKind) {
        match kind {
            FaultKind::Crash { gateway } => {
                self.conditions[gateway].crashed = false;
                let clock = draw_clock(&self.setup, &mut self.rng);
                self.gateways[gateway] =
                    Gateway::new(clock, &self.keys, self.setup.patience, self.now_us);
                self.wakes_us[gateway] = u64::MAX;
                self.wake(gateway, self.now_us);
            }
            FaultKind::Partition { gateway } => self.conditions[gateway].partitioned = false,
            FaultKind::Freeze { .. } => {}
            FaultKind::LeaderLoss => self.coordinator.win(self.now_us),
        }
    }

    fn send_up(&mut self, connection: Connection, said: Said) {
        match &said {
            Said::Message(Outgoing::Sync(sync)) if !sync.is_regular => {
                self.messages.keyed += 1;
                self.work.keyed_up += 1;
            }
            _ => {
                self.messages.regular += 1;
                self.work.regular_up += 1;
            }
        }
        if self.links.is_lost() {
            return;
        }
        let at_us = self.links.arrives_us(connection, true, self.now_us);
        if self.links.is_repeated()
            && let Said::Message(message) = &said
        {
            self.at(at_us, Event::Up(connection, Said::Message(message.clone())));
        }
        self.at(at_us, Event::Up(connection, said));
    }

    /// Sends what the coordinator has to say.
    fn collect(&mut self) {
        for (connection, message, class) in std::mem::take(&mut self.coordinator.outbox) {
            let Some(&gateway) = self.owners.get(&connection) else {
                continue;
            };
            match class {
                Class::Keyed => {
                    self.messages.keyed += 1;
                    self.work.keyed_down += 1;
                }
                Class::Regular => {
                    self.messages.regular += 1;
                    self.work.regular_down += 1;
                }
                // A message all the same, for whoever has to send it.
                Class::Acknowledgement => {
                    self.messages.acknowledgements += 1;
                    self.work.keyed_down += 1;
                }
            }
            if self.conditions[gateway].partitioned || self.links.is_lost() {
                continue;
            }
            let at_us = self.links.arrives_us(connection, false, self.now_us);
            if self.links.is_repeated() {
                self.at(at_us, Event::Down(connection, message.clone()));
            }
            self.at(at_us, Event::Down(connection, message));
        }
        self.look_at_coordinator();
    }
}

impl Limiter for Leasehold {
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
        self.now_us = request.at_us;
        let gateway = request.gateway;
        let condition = &mut self.conditions[gateway];
        if condition.crashed {
            answers.push(answer(request.id, self.now_us, Verdict::Unavailable, false));
            return;
        }
        if condition.frozen_until_us > self.now_us {
            condition.pending.push_back(*request);
            return;
        }
        answers.extend(self.gateways[gateway].request(request, self.now_us));
        self.run(gateway, answers);
        self.collect();
    }

    fn next_us(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at_us, _))| *at_us)
    }

    fn advance(&mut self, now_us: u64, answers: &mut Vec<Answer>) {
        while let Some(Reverse((at_us, number))) = self.queue.peek().copied() {
            if at_us > now_us {
                break;
            }
            self.queue.pop();
            self.now_us = at_us;
            if let Some(event) = self.events.remove(&number) {
                self.happen(event, answers);
                self.collect();
            }
        }
    }

    fn messages(&self) -> Messages {
        self.messages
    }

    fn work(&self) -> Option<Work> {
        Some(Work {
            entries: self.coordinator.load.entries,
            reports: self.coordinator.load.reports,
            ..self.work
        })
    }
}

fn draw_clock(setup: &Setup, rng: &mut Randomness) -> DriftingClock {
    let drift = u64::from(setup.drift_ppm);
    DriftingClock::new(rng.random_range(1_000_000_u64.saturating_sub(drift)..=1_000_000 + drift))
}
