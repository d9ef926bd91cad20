// storage: the jobs in an SQLite file.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "library.hpp"
#include "row.hpp"

namespace dev_backend {

// Not thread-safe. While it is open, no other process can open the file.
class storage {
  public:
    // Creates the file if it is missing. Without `full_sync`, a power failure may lose the latest commits; a crash of the
    // process does not. Errors: busy if another process has it, else system.
    static ojs::result<storage> open(const std::string& path, bool full_sync);
    storage(storage&&) noexcept;
    storage& operator=(storage&&) noexcept;
    ~storage();

    // In the order of turns. If `take` refuses a row, the error names its job.
    ojs::result<void> load(const std::function<void(const row&)>& take);
    // Atomic.
    ojs::result<void> commit(const std::vector<changed_rows>& batches);

  private:
    class impl;
    explicit storage(std::unique_ptr<impl> body);
    std::unique_ptr<impl> impl_;
};

}  // namespace dev_backend
