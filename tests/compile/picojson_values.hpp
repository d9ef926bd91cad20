// Every place that takes or gives a value of picojson.
inline ojs::outcome with_values(ojs::job_context& job) {
    ojs::result<picojson::value> first = job.arg<picojson::value>(0);
    const ojs::result<picojson::object> second = job.arg<picojson::object>(1);
    const ojs::result<picojson::array> all = job.args<picojson::array>();
    const ojs::result<picojson::value> saved = job.checkpoint<picojson::value>();
    const ojs::result<picojson::object> read = ojs::json_view::parse("{}")->as<picojson::object>();
    if (!first || !second || !all || !saved || !read) return ojs::outcome::discard("wrong arguments");
    picojson::value required = job.require_arg<picojson::value>(0);
    if (!job.save_checkpoint(required) || !job.save_checkpoint("1") || job.checkpoint().empty()) return *first;
    return ojs::outcome::done(*first);
}

inline void set_up(ojs::worker& worker) {
    worker.register_handler("a", with_values);
    worker.register_handler("b", [](ojs::job_context&) { return picojson::value(1.0); });
    worker.register_handler("c", [](ojs::job_context&) -> ojs::outcome { return picojson::value("text"); });
}
