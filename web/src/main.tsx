import { render } from "preact";
import "uplot/dist/uPlot.min.css";

import { App } from "./app";
import "./style/base.css";
import "./style/page.css";
import "./style/parts.css";

render(<App />, document.getElementById("app")!);
