#include "embedding/lookahead.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace headrace::embedding {

namespace {

// Ids ahead of the one at hand whose state is fetched into the processor's cache.
constexpr std::size_t kArrivingAhead = 24;
// Ids of a table without a fixed number of rows.
constexpr std::uint64_t kIds = std::uint64_t{1} << 63;
// Tables of at most so many rows stay in that cache by themselves.
constexpr std::size_t kSmallTable = 4096;

// Uses ahead of the one that is decided whose newest and, twice as far, next ones are.
constexpr std::size_t kDecidedAhead = 12;

// The bit number `index % count` of those that are set, in a mixed order of indices.
std::uint8_t one_of(Users users, std::uint64_t index) {
  auto skip = static_cast<int>(((index * 0x9e3779b97f4a7c15U) >> 32) %
                               static_cast<std::uint64_t>(std::popcount(users)));
  while (skip-- > 0) users &= users - 1;
  return static_cast<std::uint8_t>(std::countr_zero(users));
}

void check_range(const char* name, std::size_t found, std::size_t least, std::size_t most) {
  if (least <= found && found <= most) return;
  throw std::invalid_argument(std::string(name) + " is " + std::to_string(found) + ", needs " +
                              std::to_string(least) + " to " + std::to_string(most));
}

void check_window(std::size_t lookahead, std::size_t prefetch) {
  check_range("lookahead", lookahead, 1, kMostLookahead);
  check_range("prefetch", prefetch, 1, lookahead);
}

}  // namespace

Lookahead::Lookahead(LookaheadOptions options)
    : options_(std::move(options)),
      design_(options_.synchronisation, options_.trainers),
      first_(options_.first_batch) {
  constexpr std::size_t kMostNumbers = std::numeric_limits<std::uint32_t>::max();
  check_range("tables", options_.rows.size(), 1, 1 << 20);
  check_range("trainers", options_.trainers, 1, kMostTrainers);
  check_window(options_.lookahead, options_.prefetch);
  check_range("slots", options_.slots, 1, kMostNumbers);
  if (first_ < 0) throw std::invalid_argument("the first batch is " + std::to_string(first_));
  for (auto rows : options_.rows) {
    check_range("rows", rows, 0, kIds);
    auto& table = tables_.emplace_back();
    table.hashed = rows == 0 || rows > kMostNumbered;
    table.rows = rows == 0 ? kIds : rows;
    if (!table.hashed) table.newest.resize(rows);
  }
}

void Decision::resize(std::size_t rows) {
  ids.resize(rows);
  slots.resize(rows);
  users.resize(rows);
  next_users.resize(rows);
  owner.resize(rows);
  next.resize(rows);
  last.resize(rows);
  fetched.resize(rows);
  shared.resize(rows);
  critical.resize(rows);
}

void Lookahead::check(std::span<const TableIds> tables) const {
  if (!failure_.empty()) throw std::invalid_argument(failure_);
  if (finished_) throw std::logic_error("a batch after the last one");
  if (ready()) throw std::logic_error("a decision is due before the next batch");
  if (tables.size() != tables_.size()) {
    throw std::invalid_argument("a batch has " + std::to_string(tables.size()) + " tables, needs " +
                                std::to_string(tables_.size()));
  }
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const auto& [ids, ends] = tables[t];
    const auto name = "table " + std::to_string(t);
    if (ends.size() != options_.trainers || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.front() < 0 || ends.back() != static_cast<std::int64_t>(ids.size())) {
      throw std::invalid_argument(
          name + ": the ends of the trainers' ids need one number for each of " +
          std::to_string(options_.trainers) + ", ascending, up to " + std::to_string(ids.size()));
    }
    check_range("ids of a table", ids.size(), 0, std::numeric_limits<std::uint32_t>::max());
    const auto limit = tables_[t].rows;
    bool inside = true;
    for (auto id : ids) inside &= static_cast<std::uint64_t>(id) < limit;
    if (inside) continue;
    const auto wrong = std::find_if(ids.begin(), ids.end(), [limit](std::int64_t id) {
      return static_cast<std::uint64_t>(id) >= limit;
    });
    throw std::invalid_argument(name + ": id " + std::to_string(*wrong) + " at place " +
                                std::to_string(wrong - ids.begin()) + ", needs 0 to " +
                                std::to_string(limit - 1));
  }
}

void Lookahead::push(std::span<const TableIds> tables) {
  check(tables);
  auto& arrived = window_.emplace_back(std::exchange(spare_, {}));
  // Rows that were evicted up to then, without knowledge of this batch, may be among its own.
  arrived.after = first_ - 1;
  std::size_t count = 0;
  for (const auto& table : tables) count += table.ids.size();
  arrived.uses.clear();
  arrived.ends.clear();
  arrived.places.resize(count);
  arrived.first.assign(1, 0);
  auto* places = arrived.places.data();
  for (std::size_t t = 0; t < tables.size(); ++t) {
    if (tables_[t].hashed) {
      arrive<true>(tables_[t], tables[t], arrived, places);
    } else {
      arrive<false>(tables_[t], tables[t], arrived, places);
    }
    arrived.first.push_back(arrived.uses.size());
    arrived.ends.insert(arrived.ends.end(), tables[t].ends.begin(), tables[t].ends.end());
    places += tables[t].ids.size();
  }
  if (arrived.uses.size() > options_.slots) {
    failure_ = "batch " + std::to_string(end() - 1) + " has " +
               std::to_string(arrived.uses.size()) + " distinct rows, more than the " +
               std::to_string(options_.slots) + " that the cache has room for";
    throw std::invalid_argument(failure_);
  }
}

void Lookahead::change(std::size_t lookahead, std::size_t prefetch) {
  check_window(lookahead, prefetch);
  options_.lookahead = lookahead;
  options_.prefetch = prefetch;
}

std::size_t Lookahead::distinct() const {
  auto rows = resident_;
  for (const auto& arrived : window_) rows += arrived.fetched;
  return rows;
}

template <bool kHashed>
void Lookahead::arrive(Table& table, const TableIds& ids, Arrived& arrived, std::uint32_t* places) {
  auto& uses = arrived.uses;
  const auto count = ids.ids.size();
  const auto tag = static_cast<std::uint32_t>(end());  // this batch's number, plus 1
  const bool prefetch = kHashed || table.rows > kSmallTable;
  std::size_t i = 0;
  for (std::size_t trainer = 0; trainer < options_.trainers; ++trainer) {
    const auto bit = Users{1} << trainer;
    for (const auto stop = static_cast<std::size_t>(ids.ends[trainer]); i < stop; ++i) {
      if (prefetch && i + kArrivingAhead < count) {
        const auto ahead = static_cast<std::uint64_t>(ids.ids[i + kArrivingAhead]);
        if constexpr (kHashed) {
          table.numbers.prefetch(ahead);
          const auto nearer = static_cast<std::uint64_t>(ids.ids[i + kArrivingAhead / 2]);
          const auto number = table.numbers.likely(nearer);
          if (number != IdNumbers::kNone) __builtin_prefetch(&table.newest[number], 1);
        } else {
          __builtin_prefetch(&table.newest[ahead], 1);
        }
      }
      auto row = static_cast<std::uint32_t>(ids.ids[i]);
      if constexpr (kHashed) {
        row = table.numbers.find_or_insert(static_cast<std::uint64_t>(ids.ids[i]));
        if (table.newest.size() < table.numbers.bound()) {
          table.newest.resize(table.numbers.bound());
        }
      }
      auto& newest = table.newest[row];
      if (newest.batch_plus_1 != tag) {
        const auto place = static_cast<std::uint32_t>(uses.size());
        auto& use = uses.emplace_back(Use{row});
        if (newest.batch() >= first_) {
          link(use, newest, place);
        } else {
          ++arrived.fetched;
        }
        newest = {tag, place};
      }
      uses[newest.place].users |= bit;
      places[i] = newest.place;
    }
  }
}

// Notes a new use of a row at its previous one, which is in the window.
void Lookahead::link(Use& use, const Newest& newest, std::uint32_t place) {
  const auto batch = end() - 1;
  auto& previous = at(newest.batch()).uses[newest.place];
  previous.next = static_cast<std::uint16_t>(batch - newest.batch());
  previous.next_place = place;
  if (std::popcount(previous.users) != 1) return;
  const auto user = static_cast<std::uint8_t>(std::countr_zero(previous.users));
  const auto began = newest.batch() - (previous.before == user ? previous.alone : 0);
  use.before = user;
  use.alone = static_cast<std::uint16_t>(std::min<Batch>(batch - began, kMostLookahead));
}

// Whether more than one trainer uses a row in the window, from the batch that is decided on.
bool Lookahead::shared(const Table& table, const Use& use) const {
  if (std::popcount(use.users) != 1) return true;
  if (use.next == 0) return false;
  const auto& newest = table.newest[use.row];
  const auto& last = newest_use(newest);
  return last.users != use.users || last.before != std::countr_zero(use.users) ||
         newest.batch() - last.alone > first_;
}

std::uint32_t Lookahead::take_slot(Batch& after) {
  if (unused_ < options_.slots) return unused_++;
  const auto [slot, since] = free_.front();
  free_.pop_front();
  after = std::max(after, since);
  return slot;
}

Decision Lookahead::pop() {
  if (!failure_.empty()) throw std::invalid_argument(failure_);
  if (!ready()) throw std::logic_error("no batch can be decided yet");
  auto& arrived = window_.front();
  Decision decision;
  decision.batch = first_;
  const auto every = static_cast<Batch>(options_.commit_every);
  decision.commit = every > 0 && (first_ + 1) % every == 0;
  decision.after = std::max(
      {arrived.after, first_ - static_cast<Batch>(options_.prefetch), options_.first_batch - 1});
  decision.first.assign(arrived.first.begin(), arrived.first.end());
  decision.resize(arrived.uses.size());
  std::vector<Written> evicted;
  for (std::size_t t = 0; t < tables_.size(); ++t) decide(t, decision, evicted);
  decision.id_slots.resize(arrived.places.size());
  std::ranges::transform(arrived.places, decision.id_slots.begin(),
                         [&](std::uint32_t place) { return decision.slots[place]; });
  decision.id_rows = arrived.places;
  decision.id_ends = arrived.ends;
  decision.trainers = options_.trainers;
  resident_ = resident_ + arrived.fetched - evicted.size();
  evict_for_room(decision, evicted);
  by_table(evicted, decision.evicted_first, decision.evicted_ids, decision.evicted_slots,
           decision.evicted_owner);
  by_table(decision.commit ? take_dirty() : std::vector<Written>(), decision.dirty_first,
           decision.dirty_ids, decision.dirty_slots, decision.dirty_owner);
  design_.apply(decision);
  for (const auto& row : evicted) free_.push_back({row.slot, first_});
  spare_ = {std::move(arrived.uses), std::move(arrived.first), std::move(arrived.places),
            std::move(arrived.ends)};
  window_.pop_front();
  ++first_;
  return decision;
}

// Fetches into the processor's cache what deciding a use will read.
void Lookahead::prefetch(const Table& table, const Use& use) const {
  if (table.hashed) table.numbers.prefetch_id(use.row);
  if (use.next == 0) return;
  __builtin_prefetch(&at(first_ + use.next).uses[use.next_place], 1);
  __builtin_prefetch(&table.newest[use.row]);
}

void Lookahead::prefetch_newest(const Table& table, const Use& use) const {
  if (use.next == 0 && table.hashed) table.numbers.prefetch(table.numbers.id(use.row));
  if (use.next == 0 || std::popcount(use.users) != 1) return;
  __builtin_prefetch(&newest_use(table.newest[use.row]));
}

void Lookahead::decide(std::size_t table_index, Decision& decision, std::vector<Written>& evicted) {
  auto& table = tables_[table_index];
  const auto& [uses, first, places, ends, fetched, resident, after] = window_.front();
  const auto stop = first[table_index + 1];
  for (auto i = first[table_index]; i < stop; ++i) {
    if (i + 2 * kDecidedAhead < stop) prefetch(table, uses[i + 2 * kDecidedAhead]);
    if (i + kDecidedAhead < stop) prefetch_newest(table, uses[i + kDecidedAhead]);
    const auto& use = uses[i];
    const bool used_again = use.next != 0;
    const auto next_users = used_again ? next_use(use).users : Users{0};
    const auto both = use.users & next_users;
    decision.ids[i] = id(table, use);
    decision.slots[i] = use.resident ? use.slot : take_slot(decision.after);
    decision.users[i] = use.users;
    decision.next_users[i] = next_users;
    decision.owner[i] =
        one_of(both != 0 ? both : use.users, static_cast<std::uint64_t>(decision.ids[i]));
    decision.next[i] = used_again ? first_ + use.next : kNoBatch;
    decision.last[i] = used_again ? table.newest[use.row].batch() : first_;
    decision.fetched[i] = use.resident ? 0 : 1;
    decision.shared[i] = shared(table, use) ? 1 : 0;
    decision.critical[i] = use.next == 1 ? 1 : 0;
    if (used_again) {
      auto& next = next_use(use);
      next.slot = decision.slots[i];
      next.owner = decision.owner[i];
      next.resident = true;
      next.dirty = true;
      ++at(first_ + use.next).resident;
      continue;
    }
    evicted.push_back({table_index, decision.ids[i], decision.slots[i], decision.owner[i]});
    if (table.hashed) {
      table.newest[use.row] = {};
      table.numbers.erase(use.row);
    }
  }
}

void Lookahead::evict_for_room(Decision& decision, std::vector<Written>& evicted) {
  const auto before = evicted.size();
  // Rows that have to find room before the evictions of a later batch can make any.
  const auto far = std::min(first_ + static_cast<Batch>(options_.prefetch), end() - 1);
  std::size_t incoming = 0;
  for (auto batch = first_ + 1; batch <= far; ++batch) incoming += at(batch).fetched;
  auto excess = [&](std::size_t arriving) {
    const auto needed = resident_ + arriving;
    return needed > options_.slots ? needed - options_.slots : 0;
  };
  for (auto batch = end() - 1; batch > far && excess(incoming) > 0; --batch) {
    evict_from(batch, excess(incoming), evicted);
  }
  // Where that was not enough, the fetches for the next batch wait until this one's are done.
  for (auto batch = far; batch > first_ + 1 && excess(at(first_ + 1).fetched) > 0; --batch) {
    evict_from(batch, excess(at(first_ + 1).fetched), evicted);
  }
  decision.evicted_for_room = evicted.size() - before;
  if (evicted.size() > before) leave_out_next_users(evicted, decision);
}

// Rows that are evicted for want of room go to none of the trainers of their next use.
void Lookahead::leave_out_next_users(const std::vector<Written>& evicted,
                                     Decision& decision) const {
  std::vector<bool> gone(unused_);
  for (const auto& row : evicted) gone[row.slot] = true;
  for (std::size_t i = 0; i < decision.slots.size(); ++i) {
    if (gone[decision.slots[i]]) decision.next_users[i] = 0;
  }
}

// Evicts up to `most` of the rows in the cache whose next use is in a batch.
void Lookahead::evict_from(Batch batch, std::size_t most, std::vector<Written>& evicted) {
  auto& arrived = at(batch);
  for (std::size_t t = 0; t < tables_.size() && most > 0 && arrived.resident > 0; ++t) {
    for (auto i = arrived.first[t]; i < arrived.first[t + 1] && most > 0; ++i) {
      auto& use = arrived.uses[i];
      if (!use.resident) continue;
      evicted.push_back({t, id(tables_[t], use), use.slot, use.owner});
      use.resident = false;
      --arrived.resident;
      --resident_;
      ++arrived.fetched;
      arrived.after = std::max(arrived.after, first_);
      --most;
    }
  }
}

// The rows in the cache that were updated since the last commit.
std::vector<Lookahead::Written> Lookahead::take_dirty() {
  std::vector<Written> dirty;
  for (auto& arrived : window_) {
    // Rows in the cache lie at their next use; those of the batch that was decided are at it.
    if (&arrived == &window_.front() || arrived.resident == 0) continue;
    for (std::size_t t = 0; t < tables_.size(); ++t) {
      for (auto i = arrived.first[t]; i < arrived.first[t + 1]; ++i) {
        auto& use = arrived.uses[i];
        if (!use.resident || !use.dirty) continue;
        dirty.push_back({t, id(tables_[t], use), use.slot, use.owner});
        use.dirty = false;
      }
    }
  }
  return dirty;
}

// The columns of rows that are written back, a table's together.
void Lookahead::by_table(const std::vector<Written>& rows, std::vector<std::int64_t>& first,
                         std::vector<std::int64_t>& ids, std::vector<std::uint32_t>& slots,
                         std::vector<std::uint8_t>& owners) const {
  first.assign(tables_.size() + 1, 0);
  for (const auto& row : rows) ++first[row.table + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  ids.resize(rows.size());
  slots.resize(rows.size());
  owners.resize(rows.size());
  auto places = first;
  for (const auto& row : rows) {
    const auto place = static_cast<std::size_t>(places[row.table]++);
    ids[place] = row.id;
    slots[place] = row.slot;
    owners[place] = row.owner;
  }
}

}  // namespace headrace::embedding
