// The live page: what the server renders anew replaces what is shown, and the series become charts. No text of a log is
// made markup here: the server has escaped it, and names of sites are set as text.
(() => {
	"use strict";
	const charts = document.getElementById("charts");
	const connection = document.getElementById("connection");
	const dark = matchMedia("(prefers-color-scheme: dark)");
	let series = [];
	let shown = new Map(); // site → its charts

	// replace shows a part that has changed, and leaves open or closed what somebody opened or closed.
	function replace(id, html) {
		const part = document.getElementById(id);
		if (!part) return;
		const fresh = new DOMParser().parseFromString(html, "text/html").body;
		for (const old of part.querySelectorAll("details[data-key][data-touched]")) {
			const now = fresh.querySelector(`details[data-key="${CSS.escape(old.dataset.key)}"]`);
			if (now) {
				now.open = old.open;
				now.dataset.touched = "";
			}
		}
		part.replaceChildren(...fresh.childNodes);
	}
	document.addEventListener("click", (e) => {
		const summary = e.target.closest && e.target.closest("summary");
		if (summary) summary.parentElement.dataset.touched = "";
	});

	const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
	const number = (v, digits = 0) => v == null ? "–" : v.toLocaleString("en", { maximumFractionDigits: digits });
	const methods = ["GET", "HEAD", "POST", "other"];

	// columns makes the data of the four charts of a site: rates a minute, seconds, workers.
	function columns(s) {
		const start = Date.parse(s.start) / 1e3, n = s.abandoned.length, rate = 60 / s.step_seconds;
		const x = Array.from({ length: n }, (_, i) => start + (i + 0.5) * s.step_seconds);
		const perMinute = (list) => list ? list.map((v) => v * rate) : new Array(n).fill(0);
		return {
			requests: [x, ...methods.map((m) => perMinute(s.requests[m])), perMinute(s.abandoned)],
			p99: [x, s.p99_seconds, s.p99_seconds.map((v, i) => s.p99_is_lower_bound[i] ? v : null)],
			workers: [x, s.busy_workers_lower, s.busy_workers_upper, new Array(n).fill(s.pool_workers || null)],
			errors: [x, perMinute(s.errors_5xx), perMinute(s.limited)],
		};
	}

	const panels = [
		["requests", "Requests a minute", [...methods.map((m, i) => [m, "m" + i, 0]), ["abandoned", "bad", 0]]],
		["p99", "p99, seconds", [["p99", "lat", 2], ["at least: clients left", "bad", 2, true]]],
		["workers", "Requests at the workers (busy, or waiting for one)", [["at least", "busy", 1], ["at most", "busy", 1], ["pool", "bad", 0, false, [6, 4]]]],
		["errors", "Errors a minute", [["5xx", "bad", 0], ["refused by a limiter", "lim", 0]]],
	];

	// bands shades the times of alerts behind a chart.
	const bands = (site) => (u) => {
		const s = series.find((x) => x.site === site);
		if (!s) return;
		u.ctx.save();
		u.ctx.fillStyle = colour("shade");
		for (const [from, to] of s.alerts || []) {
			const min = u.scales.x.min, max = u.scales.x.max;
			const a = Math.max(from, min), b = Math.min(to || max, max);
			if (b <= a) continue;
			const left = u.valToPos(a, "x", true), right = u.valToPos(b, "x", true);
			u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
		}
		u.ctx.restore();
	};

	// notes draws what was noted over a chart: a line for each, and its text in the first chart of a site.
	const notes = (site, named) => (u) => {
		const s = series.find((x) => x.site === site);
		if (!s) return;
		u.ctx.save();
		u.ctx.strokeStyle = u.ctx.fillStyle = colour("accent");
		u.ctx.lineWidth = devicePixelRatio;
		u.ctx.font = 11 * devicePixelRatio + "px system-ui, sans-serif";
		u.ctx.beginPath();
		(s.annotations || []).forEach(({ at, text }, i) => {
			if (at < u.scales.x.min || at > u.scales.x.max) return;
			const x = Math.round(u.valToPos(at, "x", true)) + 0.5;
			u.ctx.moveTo(x, u.bbox.top);
			u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
			if (!named) return;
			const left = x > u.bbox.left + u.bbox.width / 2;
			u.ctx.textAlign = left ? "right" : "left";
			u.ctx.fillText(text.length > 40 ? text.slice(0, 39) + "…" : text, x + (left ? -4 : 4) * devicePixelRatio, u.bbox.top + (12 + 13 * (i % 3)) * devicePixelRatio);
		});
		u.ctx.stroke();
		u.ctx.restore();
	};

	function chart(site, into, [name, title, lines], data) {
		const figure = document.createElement("figure");
		const caption = document.createElement("figcaption");
		caption.textContent = title;
		const box = document.createElement("div");
		box.setAttribute("role", "img");
		figure.append(caption, box);
		into.append(figure);
		const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
		const plot = new uPlot({
			width: Math.max(box.clientWidth, 200), height: 150,
			tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), "Etc/UTC"),
			cursor: { sync: { key: site }, points: { size: 6 } },
			scales: { y: { range: (_, min, max) => [0, Math.max(max || 0, 1) * 1.05] } },
			axes: [{ ...axis, space: 60, values: (_, at) => at.map((v) => new Date(v * 1e3).toISOString().slice(11, 16)) }, { ...axis, size: 54, values: (_, at) => at.map((v) => number(v, 2)) }],
			series: [{ value: (_, v) => v == null ? "–" : new Date(v * 1e3).toISOString().slice(11, 19) }, ...lines.map(([label, c, digits, marks, dash]) => ({
				label, stroke: colour(c), width: marks ? 0 : 1.6, dash, spanGaps: false,
				points: { show: !!marks, size: 5, fill: colour(c) },
				value: (_, v) => number(v, digits),
			}))],
			hooks: { drawClear: [bands(site)], draw: [notes(site, name === "requests")], setSelect: [(u) => { u.zoomed = u.select.width > 0; }] },
		}, data, box);
		plot.over.addEventListener("dblclick", () => { plot.zoomed = false; });
		return { name, title, lines, plot, box };
	}

	// say tells who does not see the charts what they show now.
	function say(c, data) {
		const last = c.lines.map(([label], i) => {
			const list = data[i + 1];
			return label + " " + number(list[list.length - 1], 2);
		});
		c.box.setAttribute("aria-label", c.title + ", now: " + last.join(", "));
	}

	function draw() {
		for (const [site, of] of shown) {
			if (!series.some((s) => s.site === site)) {
				of.charts.forEach((c) => c.plot.destroy());
				of.node.remove();
				shown.delete(site);
			}
		}
		for (const s of series) {
			const data = columns(s);
			let of = shown.get(s.site);
			if (!of) {
				const node = document.createElement("section"), head = document.createElement("h3");
				node.className = "site";
				head.textContent = s.site;
				node.append(head);
				charts.append(node);
				of = { node, charts: panels.map((p) => chart(s.site, node, p, data[p[0]])) };
				shown.set(s.site, of);
			}
			charts.append(of.node); // in the server's order
			for (const c of of.charts) {
				c.plot.setData(data[c.name], !c.plot.zoomed);
				say(c, data[c.name]);
			}
		}
	}

	function forget() {
		for (const of of shown.values()) {
			of.charts.forEach((c) => c.plot.destroy());
			of.node.remove();
		}
		shown = new Map();
	}
	dark.addEventListener("change", () => { forget(); draw(); });
	new ResizeObserver(() => {
		for (const of of shown.values()) {
			for (const c of of.charts) c.plot.setSize({ width: Math.max(c.box.clientWidth, 200), height: 150 });
		}
	}).observe(charts);

	function connect() {
		const stream = new EventSource("api/v1/stream");
		stream.addEventListener("parts", (e) => {
			const parts = JSON.parse(e.data);
			for (const id of Object.keys(parts.html)) replace(id, parts.html[id]);
			connection.textContent = "live, as of " + parts.now;
			connection.classList.remove("stale");
			document.title = (parts.firing ? "(" + parts.firing + ") " : "") + "squall";
		});
		stream.addEventListener("series", (e) => {
			series = JSON.parse(e.data);
			draw();
		});
		stream.addEventListener("beat", (e) => {
			connection.textContent = "live, as of " + e.data;
			connection.classList.remove("stale");
		});
		stream.onerror = () => {
			if (!connection.classList.contains("stale")) connection.textContent = "not connected; " + connection.textContent.replace("live, ", "");
			connection.classList.add("stale");
			if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
		};
	}
	connect();
})();
