// A folder that keeps rows of a fixed width durably: a snapshot, and logs of the changes since.
//
//   lock          held while the folder is open
//   snapshot-7    all rows as they were when log 7 was begun; snapshot 0 is empty and has no file
//   changes-7     what was committed since, up to where changes-8 begins
//   closed        what the folder had when it was last closed (closing_record.hpp)
//
// A checkpoint syncs the log, begins the next one, and then writes the snapshot of the next one's
// number; what the new snapshot replaces is removed last. After a failure at any point, the newest
// snapshot and the logs from its number on have every group. What was closed opens as a whole or
// not at all: a log that was cut or removed since is not taken for one that a failure ended.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "index/durable/closing_record.hpp"
#include "index/durable/durable_merge.hpp"
#include "index/durable/files_system.hpp"
#include "process.hpp"

namespace headrace::index {

struct DurableOptions {
  KeyKind keys = KeyKind::unsigned_integer;
  std::uint32_t block_bytes = 65'536;  // of snapshots, each with its own checksum
  // A checkpoint begins by itself, in the background, once the logs have this many bytes and as
  // many as the snapshot; 0: never. It bounds the time that the next opening takes.
  std::uint64_t checkpoint_log_bytes = 64U << 20;
  // After a loss of power, open with what lies before groups that were committed without `sync` and
  // are lost in part, instead of refusing the folder.
  bool accept_unsynced_loss = false;
  // Open with what is left where the folder was closed with more: its last log was cut or removed.
  bool accept_closed_loss = false;
  // Open with the groups up to this one, and remove those after it: of several folders that commit
  // together, one may have a group that the others lack.
  std::uint64_t last_group = kNoLastGroup;
  // Leave the logs as they are, and commit to a new one: they may be links to those of another
  // folder, whose owner still appends to them. What lies behind the next log's start is ignored.
  bool new_log = false;
  // false: a checkpoint begins by checkpoint_if_due() or checkpoint() alone. A folder whose last
  // group may have to be removed has its checkpoints while it has none such: a snapshot is whole.
  bool automatic_checkpoints = true;
  bool background = true;  // false: nothing runs on other threads or begins by itself
  Files* files = &system_files();
};

enum class Sync { no, yes };

// Used by one thread at a time; a checkpoint's own thread uses files alone. A row's value has
// `width` bytes. Members throw std::system_error if the system refuses an operation, and ForkError
// in a child of the process that opened the folder: there it has no files and no lock.
class DurableFolder {
 public:
  // Creates the folder (its parent exists) or opens it; load() must follow. Throws
  // std::runtime_error if it is open elsewhere, DamageError naming file and block or offset if a
  // file is missing, cut or altered, std::invalid_argument if it holds rows of another format.
  DurableFolder(std::string path, std::uint32_t width, const DurableOptions& options)
      : files_(*options.files),
        path_(without_slash(std::move(path))),
        options_(options),
        format_{width, options.keys} {
    files_.make_folder(path_);
    lock_ = files_.lock(lock_path());
    lock_stamp_ = files_.stamp(lock_path());
    survey();
  }
  DurableFolder(const DurableFolder&) = delete;
  DurableFolder& operator=(const DurableFolder&) = delete;
  ~DurableFolder() {
    try {
      close();
    } catch (const std::exception&) {
      // Call close() to learn of failures: what was committed is in the files without it.
    }
  }

  // The rows that load() starts from; null: none.
  const std::shared_ptr<const Snapshot>& snapshot() const {
    check_process();
    return base_;
  }

  // The changes since the snapshot. Call it once, before any commit. Throws DamageError if the
  // groups up to the last one that is asked for are not all there.
  MergedChanges load() {
    check_process();
    MergedChanges changes;
    ChangeLog::End end{0, base_ ? base_->sequence() : 0, 0};
    for (auto generation = base_generation();; ++generation) {
      ChangeLogReader reader(files_, changes_path(generation), format_);
      check_succession(reader, generation, end, base_generation());
      auto newest = generation == newest_log_;
      auto file_bytes = reader.file_bytes();
      const auto last = newest || begins_after_last_group(generation + 1);
      end = changes.add(std::move(reader), newest && options_.accept_unsynced_loss,
                        options_.last_group, last ? kWholeLog : bytes_before(generation + 1));
      if (last) check_end(end);
      if (last && options_.accept_closed_loss) forget_closing();
      if (last) remove_logs_after(generation, end);
      if (last && !options_.new_log) {
        log_.emplace(files_, changes_path(generation), generation, end, file_bytes);
        return changes;
      }
      log_bytes_ += end.bytes;
      if (last) {
        newest_log_ = generation + 1;
        ChangeLog next(files_, changes_path(newest_log_),
                       {format_, newest_log_, end.sequence, end.bytes});
        next.show();
        log_.emplace(std::move(next));
        return changes;
      }
    }
  }

  // Appends the changes to the log as one group; with Sync::yes, returns once it and all before it
  // are on the device. After a failure none of the changes is in the log, unless broken().
  void commit(Changes& changes, Sync sync) {
    check_usable();
    log_->append(changes, sync == Sync::yes);
    if (running_) {
      if ((*running_)->wait_for(std::chrono::seconds(0)) == std::future_status::ready) collect();
    } else if (options_.automatic_checkpoints) {
      checkpoint_if_due();
    }
  }

  // Begins a checkpoint in the background if the logs have grown to where one is due.
  void checkpoint_if_due() {
    check_usable();
    if (running_ || !options_.background || options_.checkpoint_log_bytes == 0) return;
    if (log_bytes() >= next_checkpoint_) begin_checkpoint_silently();
  }

  // Returns once every group is on the device.
  void sync() {
    check_usable();
    log_->sync();
  }

  // Writes a new snapshot and ends the logs before it: in the background, or until it returns
  // otherwise. A checkpoint that is running is waited for first; a failure of it, or of one before,
  // is forgotten, as this one does what that one did not. Throws its own failure: the folder is as
  // durable as before, and its logs are longer.
  void checkpoint() {
    supersede();
    begin_checkpoint();
    if (!options_.background) wait();
  }

  // Returns once no checkpoint is running; throws the failure of the last one.
  void wait() {
    check_process();
    if (running_) collect();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  // The checkpoint that is running, to be waited for beside other calls; not valid: there is none.
  std::shared_future<std::shared_ptr<const Snapshot>> running() const {
    check_process();
    return running_ ? **running_ : std::shared_future<Merged>();
  }

  // Replaces all rows: `fill` appends `count` rows, ascending by code, to a SnapshotWriter. The
  // folder is synced after it. If it fails, the rows are as before it, unless broken().
  template <class Fill>
  void replace(std::uint64_t count, Fill&& fill) {
    supersede();
    begin_log();
    auto generation = log_->generation();
    SnapshotWriter writer(files_, snapshot_path(generation), contents(count));
    try {
      fill(writer);
      writer.finish();
      begin_from(open_snapshot(generation));
    } catch (...) {
      broken_ = writer.may_be_visible();
      throw;
    }
  }

  // Waits for a checkpoint, ends the log, and records what the folder has. Throws their failures;
  // nothing can be committed after. Without effect in a child.
  void close() {
    if (!lock_ || mark_.forked()) return;
    auto lock = std::exchange(lock_, nullptr);  // released last
    if (running_) collect();
    broken_ = broken();
    auto log = std::move(log_);
    log_.reset();  // nothing is committed after a failure, either
    if (log && !broken_) {
      log->close();
      record_closing(*log);
    }
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  // A file's state is unknown after a failure: nothing is committed any more. Opening the folder
  // again reads the files: every group that was committed, perhaps the one that failed.
  bool broken() const { return broken_ || (log_ && log_->broken()); }
  // Groups committed ever.
  std::uint64_t sequence() const { return log_ ? log_->sequence() : 0; }
  // Bytes that the next opening has to replay.
  std::uint64_t log_bytes() const { return log_bytes_ + (log_ ? log_->bytes() : 0); }
  const std::string& path() const { return path_; }

 private:
  using Merged = std::shared_ptr<const Snapshot>;

  std::string lock_path() const { return join_path(path_, "lock"); }
  std::string closed_path() const { return join_path(path_, "closed"); }
  std::string snapshot_path(std::uint64_t generation) const {
    return join_path(path_, "snapshot-" + std::to_string(generation));
  }
  std::string changes_path(std::uint64_t generation) const {
    return join_path(path_, "changes-" + std::to_string(generation));
  }
  std::uint64_t base_generation() const { return base_ ? base_->generation() : 0; }
  SnapshotWriter::Contents contents(std::uint64_t count) const {
    return {format_, count, log_->generation(), log_->sequence(), options_.block_bytes};
  }

  // Finds the newest snapshot and its logs, creates the first log of an empty folder, and removes
  // what a failure left.
  void survey() {
    std::map<std::uint64_t, std::string> snapshots, logs;
    std::vector<std::string> left;
    for (const auto& name : files_.list(path_)) {
      if (durable::is_unfinished_own(name)) files_.remove(join_path(path_, name));
      if (name == "closed" && !options_.accept_closed_loss) {
        closed_ = closing_record::read(files_, closed_path());
      }
      if (auto generation = durable::number_of(name, "snapshot-")) snapshots[*generation] = name;
      if (auto generation = durable::number_of(name, "changes-")) logs[*generation] = name;
    }
    if (!snapshots.empty()) base_ = open_snapshot(snapshots.rbegin()->first);
    if (logs.empty() && snapshots.empty() && !closed_) {
      files_.sync_folder(folder_of(path_));
      ChangeLog(files_, changes_path(0), {format_, 0, 0, 0}).show();
      logs[0] = "changes-0";
    }
    if (options_.accept_closed_loss) restore_log(logs);
    newest_log_ = logs.empty() ? 0 : logs.rbegin()->first;
    for (auto generation = base_generation(); generation <= newest_log_; ++generation) {
      if (!logs.contains(generation)) throw missing(generation);
    }
    if (newest_log_ < base_generation() || logs.empty()) throw missing(base_generation());
    if (closed_ && newest_log_ < closed_->generation) throw missing(closed_->generation);
    remove_before(base_generation(), snapshots, left);
    remove_before(base_generation(), logs, left);
    for (const auto& name : left) files_.remove(join_path(path_, name));
    if (base_ && base_->sequence() > options_.last_group) {
      throw DamageError(base_->path() + ": has " + std::to_string(base_->sequence()) + " groups, " +
                        std::to_string(options_.last_group) +
                        " are wanted: the changes of each were merged");
    }
    schedule_checkpoint();
  }

  // If the log after the newest snapshot was removed, or cut within its header, and was the last:
  // begins it again.
  void restore_log(std::map<std::uint64_t, std::string>& logs) {
    if (!base_) return;
    const auto number = base_generation();
    if (!logs.empty() && logs.rbegin()->first > number) return;
    if (logs.contains(number) && !ChangeLogReader::is_cut(files_, changes_path(number))) return;
    ChangeLog(files_, changes_path(number), {format_, number, base_->sequence(), 0}).show();
    logs[number] = "changes-" + std::to_string(number);
  }

  // Removes the record of what the folder had when it was closed, once what is left has been read.
  void forget_closing() {
    closed_.reset();
    const auto names = files_.list(path_);
    if (std::find(names.begin(), names.end(), "closed") == names.end()) return;
    files_.remove(closed_path());
    files_.sync_folder(path_);
  }

  // Whether a log has only groups after the last one that is asked for.
  bool begins_after_last_group(std::uint64_t generation) const {
    if (options_.last_group == kNoLastGroup) return false;
    ChangeLogReader reader(files_, changes_path(generation), format_);
    return reader.first_sequence() >= options_.last_group;
  }

  // Bytes of the log before a log, as this one's start has them.
  std::uint64_t bytes_before(std::uint64_t generation) const {
    if (!options_.new_log) return kWholeLog;
    return ChangeLogReader(files_, changes_path(generation), format_).previous_bytes();
  }

  // Throws unless the groups end where they have to.
  void check_end(const ChangeLog::End& end) const {
    if (options_.last_group == kNoLastGroup) return check_closed(end);
    if (end.sequence == options_.last_group) return;
    throw DamageError(path_ + ": has groups up to " + std::to_string(end.sequence) + ", " +
                      std::to_string(options_.last_group) + " are wanted" + closing());
  }

  // Removes the logs after the one that ends with the last group, which is cut next: the newest
  // first, so that a failure leaves logs that follow each other. That the folder was closed with
  // more is forgotten before.
  void remove_logs_after(std::uint64_t generation, const ChangeLog::End& end) {
    if (options_.last_group == kNoLastGroup) return;
    if (closed_ && closed_->sequence > end.sequence) {
      forget_closing();
    }
    while (newest_log_ > generation) {
      files_.remove(changes_path(newest_log_--));
      files_.sync_folder(path_);
    }
  }

  DamageError missing(std::uint64_t generation) const {
    return DamageError(changes_path(generation) + ": is missing; the folder's snapshot is number " +
                       std::to_string(base_generation()) + closing());
  }

  // The end of an error about files that were there when the folder was closed.
  std::string closing() const {
    if (!closed_) return "";
    return ". The folder was closed with " + std::to_string(closed_->sequence) +
           " groups, the last in " + changes_path(closed_->generation) +
           ": restore the file, or open what is left with accept_closed_loss";
  }

  // Throws if groups are missing that the folder had when it was closed.
  void check_closed(const ChangeLog::End& end) const {
    if (!closed_ || end.sequence >= closed_->sequence) return;
    throw DamageError(changes_path(newest_log_) + ": ends at offset " + std::to_string(end.bytes) +
                      ", after group " + std::to_string(end.sequence) + "; " +
                      std::to_string(closed_->sequence - end.sequence) +
                      " groups after it are missing" + closing());
  }

  void record_closing(const ChangeLog& log) {
    ClosingRecord record;
    record.generation = log.generation();
    record.sequence = log.sequence();
    record.log_bytes = log.bytes();
    record.checksum = closing_record::checksum_of(record);
    if (closed_ == record) return;
    check_place();
    closing_record::write(files_, closed_path(), record);
  }

  static void remove_before(std::uint64_t generation,
                            const std::map<std::uint64_t, std::string>& files,
                            std::vector<std::string>& left) {
    for (const auto& [number, name] : files) {
      if (number < generation) left.push_back(name);
    }
  }

  Merged open_snapshot(std::uint64_t generation) const {
    auto opened = std::make_shared<const Snapshot>(files_, snapshot_path(generation), format_);
    if (opened->generation() == generation) return opened;
    throw DamageError(opened->path() + ": is the snapshot of number " +
                      std::to_string(opened->generation()));
  }

  // Throws unless the log continues where what was read before it, from a base on, ended.
  void check_succession(const ChangeLogReader& reader, std::uint64_t generation,
                        const ChangeLog::End& before, std::uint64_t base) const {
    if (reader.generation() != generation) {
      throw DamageError(reader.path() + ": is the log of number " +
                        std::to_string(reader.generation()));
    }
    if (generation > base && reader.previous_bytes() != before.bytes) {
      throw DamageError(changes_path(generation - 1) + ": whole groups end at offset " +
                        std::to_string(before.bytes) + "; " + reader.path() + " records offset " +
                        std::to_string(reader.previous_bytes()));
    }
    if (reader.first_sequence() != before.sequence) {
      throw DamageError(reader.path() + ": follows group " +
                        std::to_string(reader.first_sequence()) + "; what lies before it ends at " +
                        "group " + std::to_string(before.sequence));
    }
  }

  void check_process() const {
    if (mark_.forked()) ForkMark::refuse(path_);
  }

  void check_usable() const {
    check_process();
    if (!log_) throw std::logic_error(path_ + ": is not open");
    if (!broken()) return;
    throw std::runtime_error(path_ + ": takes no more changes since an operation on its files " +
                             "failed; open the folder again");
  }

  // Files of new names would be those of another folder that has taken the path.
  void check_place() const {
    if (files_.stamp(lock_path()).is_of(lock_stamp_)) return;
    throw std::runtime_error(path_ + ": is another folder now than the one that was opened: the " +
                             "changes since are in that one's files, where these still exist");
  }

  // Syncs the log and begins the next.
  void begin_log() {
    check_usable();
    check_place();
    log_->sync();
    ChangeLog next(files_, changes_path(log_->generation() + 1),
                   {format_, log_->generation() + 1, log_->sequence(), log_->bytes()});
    broken_ = true;  // once the name may be there, no change may follow in the log before
    next.show();
    broken_ = false;
    log_bytes_ += log_->bytes();
    log_.emplace(std::move(next));
  }

  void begin_checkpoint() {
    begin_log();
    auto write = [this, base = base_, target = contents(0)] {
      // What load() would refuse must not be replaced: a group that is damaged since is lost.
      MergedChanges changes;
      const auto first = base ? base->generation() : 0;
      ChangeLog::End end{0, base ? base->sequence() : 0, 0};
      for (auto number = first; number <= target.generation; ++number) {
        ChangeLogReader reader(files_, changes_path(number), format_);
        check_succession(reader, number, end, first);
        if (number == target.generation) break;
        end = changes.add(std::move(reader), false, kNoLastGroup, bytes_before(number + 1));
      }
      write_merged(files_, snapshot_path(target.generation), base.get(), changes.sorted(), target);
      return open_snapshot(target.generation);
    };
    auto launch = options_.background ? std::launch::async : std::launch::deferred;
    running_.emplace(path_, std::async(launch, std::move(write)));
  }

  // Before a snapshot is written: waits for a checkpoint, whose failure is of no interest then.
  void supersede() {
    check_process();
    if (running_) collect();
    failure_ = nullptr;
  }

  // A commit does not fail because of the checkpoint that it begins: the failure is kept.
  void begin_checkpoint_silently() {
    next_checkpoint_ += log_bytes();  // after a failure, the next one is later
    try {
      begin_checkpoint();
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
  }

  // Takes over the snapshot of a checkpoint; keeps its failure.
  void collect() {
    try {
      begin_from((*running_)->get());
      failure_ = nullptr;
    } catch (const std::exception&) {
      failure_ = std::current_exception();
    }
    running_.reset();
  }

  // Removes what a new snapshot, to which the growing log belongs, replaces; what cannot be removed
  // is so at the next opening.
  void begin_from(Merged snapshot) {
    auto before = std::exchange(base_, std::move(snapshot));
    log_bytes_ = 0;
    schedule_checkpoint();
    if (before) remove_if_possible(before->path());
    for (auto number = before ? before->generation() : 0; number < base_generation(); ++number) {
      remove_if_possible(changes_path(number));
    }
  }

  void remove_if_possible(const std::string& path) {
    try {
      files_.remove(path);
    } catch (const std::system_error&) {
    }
  }

  void schedule_checkpoint() {
    next_checkpoint_ = std::max(options_.checkpoint_log_bytes, base_ ? base_->file_bytes() : 0);
  }

  Files& files_;
  std::string path_;
  DurableOptions options_;
  RowFormat format_;
  std::shared_ptr<const void> lock_;
  FileStamp lock_stamp_;
  Merged base_;
  std::uint64_t newest_log_ = 0;
  std::optional<ChangeLog> log_;
  std::uint64_t log_bytes_ = 0;  // of the logs since the snapshot, without the one that grows
  std::uint64_t next_checkpoint_ = 0;
  std::optional<ClosingRecord> closed_;  // read at the opening
  bool broken_ = false;
  ForkMark mark_;
  std::optional<ProcessBound<std::shared_future<Merged>>> running_;  // a child has no such thread
  std::exception_ptr failure_;
};

}  // namespace headrace::index
